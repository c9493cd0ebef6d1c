"""Where the commands start, and how one starts another: ``python -m asr.commands train …``."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial

from asr.commands.startup import importing
from asr.processes import INTERRUPTED, LAUNCHER_VARIABLE, die_with_parent

COMMANDS = (
    *("prepare", "train", "evaluate", "transcribe", "align", "lm"),
    *("stream", "demo", "convert", "export", "compare", "runs"),
)


def start(command: str) -> None:
    """Run a command, whose libraries are imported once its command line has been composed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        # torch's libraries end the process without it
        print(f"asr-{command}: the current folder no longer exists; change to one that does", file=sys.stderr)
        raise SystemExit(2) from None
    if os.environ.get(LAUNCHER_VARIABLE) == str(os.getppid()):
        # a run that was killed can be resumed at once, with all of its processes: then none may write to its folder
        die_with_parent(os.getppid())
    with importing(command):
        app = importlib.import_module("asr.commands.app")
    try:
        # listens for signals itself; until then those of the import are handled
        app.run_app(command)
    except KeyboardInterrupt:
        print(f"asr-{command}: interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    finally:
        # CPython 3.11 ends by SIGINT in spite of the code above if code compiled from a string, as dataclasses have it,
        # was the last such code and was interrupted
        exec("")


# the console scripts
globals().update({command: partial(start, command) for command in COMMANDS})

if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        problem = f"{name!r} is not a command" if name else "no command is given"
        print(f"asr.commands: {problem}; allowed: {', '.join(COMMANDS)}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv[0] = f"asr-{name}"
    start(name)
