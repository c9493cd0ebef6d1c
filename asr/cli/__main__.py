"""Where the commands start, and how one starts another: ``python -m asr.cli train …``."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from asr.error_text import first_line, is_out_of_memory

INTERRUPTED = 130  # what a shell counts for SIGINT
MORE_MEMORY = "free some memory, or raise its limit (ulimit -v), then run the same command again, or resume=RUN"


def start(command: str) -> None:
    """Import a command and run it."""

    def leave(*_: object) -> None:
        os.write(sys.stderr.fileno(), f"asr-{command}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    # Importing torch takes seconds, and a KeyboardInterrupt in them is a traceback, or is lost: some modules catch
    # whatever their own imports raise. Nothing is made yet that would have to be cleared away.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # shells let background jobs ignore it
        signal.signal(signal.SIGINT, leave)
    try:
        module = importlib.import_module(f"asr.cli.{command}")
    except Exception as error:
        if "HYDRA_FULL_ERROR" in os.environ or not is_out_of_memory(error):
            raise
        print(f"asr-{command}: out of memory while starting: {first_line(error)}; {MORE_MEMORY}", file=sys.stderr)
        raise SystemExit(1) from None
    signal.signal(signal.SIGINT, before)
    module.main()


def prepare() -> None:
    """Run ``asr-prepare``."""
    start("prepare")


def train() -> None:
    """Run ``asr-train``."""
    start("train")


def evaluate() -> None:
    """Run ``asr-evaluate``."""
    start("evaluate")


def transcribe() -> None:
    """Run ``asr-transcribe``."""
    start("transcribe")


def compare() -> None:
    """Run ``asr-compare``."""
    start("compare")


if __name__ == "__main__":
    name = sys.argv.pop(1)
    sys.argv[0] = f"asr-{name}"
    start(name)
