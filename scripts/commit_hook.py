"""Writes the commit into a wheel and an sdist, for ``--version`` and the records of runs; hatchling calls it."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds ``asr/COMMIT``, unless the sources are an sdist, which has it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file outside of the checkout, and include it."""
        file = Path(self.root) / "asr" / "COMMIT"
        if version == "editable" or file.exists():
            return
        commit = runpy.run_path(str(Path(self.root) / "asr" / "commit.py"))["source_commit"]()
        if commit is not None:
            written = Path(tempfile.mkdtemp()) / "COMMIT"
            written.write_text(f"{commit}\n")
            build_data["force_include"][str(written)] = "asr/COMMIT"
