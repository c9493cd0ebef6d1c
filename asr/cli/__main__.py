"""Where the commands start, and how one starts another: ``python -m asr.cli train …``."""

from __future__ import annotations

import importlib
import os
import signal
import sys

INTERRUPTED = 130  # what a shell counts for SIGINT


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
    module = importlib.import_module(f"asr.cli.{command}")
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
