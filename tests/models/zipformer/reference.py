"""The authors' package, as scripts/bench/authors_zipformer.py loads it for the benchmark too."""

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[3] / "scripts" / "bench"


def loaded(script: str) -> ModuleType:
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(script, SCRIPTS / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_authors = loaded("authors_zipformer")
Reference, draw_always, find_package, load = (
    getattr(_authors, name) for name in ("Reference", "draw_always", "find_package", "load")
)
