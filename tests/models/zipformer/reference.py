"""The authors' package, as scripts/authors_zipformer.py loads it for the benchmark too."""

import importlib.util
from pathlib import Path

_FILE = Path(__file__).parents[3] / "scripts" / "authors_zipformer.py"
_spec = importlib.util.spec_from_file_location("authors_zipformer", _FILE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

Reference, draw_always, find_package, load = _module.Reference, _module.draw_always, _module.find_package, _module.load
