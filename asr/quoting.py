"""Values as Hydra's grammar and a shell read them back."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from asr.trust import trusted

PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)


def quoted(value: str) -> str:
    """Return a value in quotes of Hydra's grammar, whatever characters it has."""
    return "'" + re.sub(r"(\\*)('|$)", _escape, value) + "'"


def _escape(found: re.Match[str]) -> str:
    # a backslash is special only in front of a quote
    return 2 * found[1] + (f"\\{found[2]}" if found[2] else "")


def resume_command(run_dir: Path | str) -> str:
    """Return the command that resumes a run, to be pasted into a shell: a folder may have any name."""
    place, packages = str(run_dir), ",".join(trusted())
    trust = f" {shlex.quote(f'trust=[{packages}]')}" if packages else ""
    return f"asr-train {shlex.quote(f'resume={place if PLAIN.fullmatch(place) else quoted(place)}')}{trust}"
