"""The commit that this code is from. Imports the standard library alone: the build of a wheel runs it too."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMMIT = Path(__file__).with_name("COMMIT")  # in a wheel and an sdist, written when they are built


def source_commit() -> str | None:
    """Return the commit that this code is from, with ``-dirty`` if files were changed; None if that is not known."""
    if COMMIT.is_file():
        return COMMIT.read_text(encoding="utf-8").strip()
    root = COMMIT.parents[1]
    if not (root / ".git").exists():  # installed below another project's repository
        return None
    # --exclude=*: the commit, even if it has a tag
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
