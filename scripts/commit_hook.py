"""What hatchling adds to a wheel and an sdist: the commit, and a README whose links lead to the repository."""

from __future__ import annotations

import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r'(\]\(|src=")(?!\w+:|#)')


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


class ReadmeHook(MetadataHookInterface):
    """Makes links and pictures of README.md absolute: an index of packages has no other file of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README of the metadata."""
        version = runpy.run_path(str(Path(self.root) / "asr" / "__init__.py"))["__version__"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        places = {"](": "blob", 'src="': "raw"}

        def absolute(link: re.Match[str]) -> str:
            return f"{link[0]}{metadata['urls']['Repository']}/{places[link[1]]}/v{version}/"

        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(absolute, text)}
