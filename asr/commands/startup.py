"""The start of a command, before and while libraries are imported: signals, exit codes, and what cannot be imported.

Imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from asr.processes import INTERRUPTED, RUN_DIR_VARIABLE, TRY_AGAIN, listen
from asr.run.folder import resume_command
from werdict.errors import MORE_MEMORY, first_line, is_out_of_memory


@contextlib.contextmanager
def importing(command: str) -> Iterator[None]:
    """Leave in one line if a library cannot be imported, or a signal arrives meanwhile; keeps listening to signals.

    Importing torch takes seconds, and a KeyboardInterrupt in them is a traceback, or is lost: some modules catch
    whatever their own imports raise.

    Raises:
        SystemExit: a library cannot be imported.
    """

    def leave(number: int, _: object) -> None:
        """Say what ended the command, and end the process without Python's own cleaning up."""
        line, code = "interrupted", INTERRUPTED
        if number != signal.SIGINT:
            line = f"ended by {signal.Signals(number).name}{advice_at_start(command)}"
            code = ended_code(command, number)
        # only the first of several processes prints; its terminal may be closed
        if os.environ.get("LOCAL_RANK", "0") == "0":
            with contextlib.suppress(OSError):
                os.write(2, f"asr-{command}: {line}\n".encode())
        os._exit(code)

    before = signal.getsignal(signal.SIGINT)
    # shells let background jobs ignore it, and only the main thread may set it: a launcher may use another one
    interruptible = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if interruptible:
        signal.signal(signal.SIGINT, leave)
    listen(leave)
    try:
        yield
    except Exception as error:
        if "HYDRA_FULL_ERROR" in os.environ:
            raise
        message, code = explain_import(error)
        print(f"asr-{command}: {message}\n(HYDRA_FULL_ERROR=1 shows where this comes from.)", file=sys.stderr)
        raise SystemExit(code) from None
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, before)


def explain_import(error: Exception) -> tuple[str, int]:
    """Return why libraries cannot be imported, and the exit code."""
    if is_out_of_memory(error):
        return f"out of memory while starting: {first_line(error)}; {MORE_MEMORY}", 1
    message = f"a library cannot be imported: {type(error).__name__}: {first_line(error)}"
    advice = "install the packages of this project again, or check the environment variables"
    return f"{message}; {advice}{'' if 'HOME' in os.environ else ', of which HOME is not set'}", 1


def ended_code(command: str, number: int) -> int:
    """Return the exit code after a signal: nothing is lost of a run, which may be started again."""
    return TRY_AGAIN if command == "train" else 128 + number


def advice_at_start(command: str) -> str:
    """Return how the line about a signal ends before any work has begun."""
    if command != "train":
        return ""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return (
        f"; to resume: {resume_command(run_dir)}" if run_dir else " before training began; run the same command again"
    )
