"""The processes of a run: which one is the first, signals that ask one to end, and that none outlives its parent.

Known without torch, because signals may arrive while it is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# clusters send the first three before they take a machine away, submitit SIGUSR2 before a time limit
ENDING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGXCPU)
INTERRUPTED = 128 + signal.SIGINT  # by Ctrl-C
TRY_AGAIN = os.EX_TEMPFAIL  # 75, which no error and no signal gives

PR_SET_PDEATHSIG = 1
# set by torchrun and by our own launcher, and by SLURM
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")

NUM_RANKS = "WORLD_SIZE"  # set by torchrun and by our own launcher
TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun alone
RUN_DIR_VARIABLE = "WERDICT_RUN_DIR"  # how the launcher of several processes tells them the run's folder
LAUNCHER_VARIABLE = "WERDICT_LAUNCHER"  # process id of the launcher that has set RUN_DIR_VARIABLE


class Terminated(SystemExit):
    """A signal has asked this process to end; not an error, so that nothing on the way out takes it for one.

    Attributes:
        signal: that was received.
        advice: returns what to do next, asked for when all is cleared away.
    """

    def __init__(self, number: int, advice: Callable[[], str]) -> None:
        self.signal = signal.Signals(number)
        self.advice = advice
        super().__init__(128 + number)


def not_ignored(signals: Iterable[signal.Signals] = ENDING) -> list[signal.Signals]:
    """Return those signals that this process was not started to ignore, as ``nohup`` starts it."""
    return [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]


def listen(handler: Callable[[int, Any], object] | signal.Handlers, signals: Iterable[signal.Signals] = ENDING) -> None:
    """Call ``handler`` when a signal asks for an end, unless it is ignored; only the main thread can be told."""
    if threading.current_thread() is threading.main_thread():
        for number in not_ignored(signals):
            signal.signal(number, handler)


def end_with(advice: Callable[[], str]) -> None:
    """Raise ``Terminated`` at the first signal; later ones, which would interrupt the clearing away, are ignored."""

    def end(number: int, _: object) -> None:
        leave_closed_terminal()
        listen(lambda *_: None)
        raise Terminated(number, advice)

    listen(end)


@contextlib.contextmanager
def signals_first() -> Iterator[None]:
    """Raise the interrupt itself instead of an error that it caused: libraries may fail while they clean up.

    OmegaConf restores flags of a half-built config; Python 3.11 turns what interrupts the creation of a class into a
    RuntimeError.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        visited: list[BaseException] = []
        while cause is not None and cause not in visited:  # errors may be causes of each other
            if isinstance(cause, Terminated | KeyboardInterrupt):
                raise cause from None
            visited.append(cause)
            cause = cause.__cause__ or cause.__context__
        raise


@contextlib.contextmanager
def restored_handlers(signals: Iterable[signal.Signals] = ENDING) -> Iterator[None]:
    """Restore the previous handlers on exit."""
    before = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # one that Python did not install
                    signal.signal(number, handler)


def leave_closed_terminal() -> None:
    """Send output nowhere that went to a terminal which is closed: writing there fails, and would end a run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream.fileno() in _terminals and not os.isatty(stream.fileno()):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_terminals = {descriptor for descriptor in (1, 2) if os.isatty(descriptor)}


def is_first_process() -> bool:
    """Return whether this is the process that writes and prints, according to the environment."""
    ranks = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return not ranks or ranks[0] == "0"


def is_one_of_several() -> bool:
    """Return whether there are other processes of this run, according to the environment."""
    ranks = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return bool(ranks) and (not is_first_process() or os.environ.get(NUM_RANKS, "1") not in ("0", "1"))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux).

    Args:
        parent: process id of the parent. If the parent is already dead, this process ends at once: another process
            has adopted it, and the kernel would wait for the end of that one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
