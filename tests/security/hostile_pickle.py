"""A pickle that shows whether it was read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path


class MakesFolder:
    """Makes a folder ``hacked`` where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("hacked",)


def write_hostile_pickle(folder: Path) -> None:
    """Write ``evil.pickle``, which makes a folder ``hacked`` where it is unpickled."""
    (folder / "evil.pickle").write_bytes(pickle.dumps(MakesFolder()))
