"""Prints the section of CHANGELOG.md that a tag names: ``python3 scripts/release_notes.py v0.2.0``.

Ends with an error if the tag is not the version of the package, or if the section is missing or empty.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def section(changelog: str, version: str) -> str:
    """Return what stands under the heading of a version."""
    found = re.search(rf"(?ms)^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    return found[1].strip() if found else ""


def main() -> None:
    """Print the section."""
    version = sys.argv[1].removeprefix("v")
    source = (ROOT / "asr" / "__init__.py").read_text(encoding="utf-8")
    if f'__version__ = "{version}"' not in source:
        sys.exit(f"{sys.argv[1]}: asr/__init__.py has another __version__")
    notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not notes:
        sys.exit(f"CHANGELOG.md: no entries for {version}")
    print(notes)


if __name__ == "__main__":
    main()
