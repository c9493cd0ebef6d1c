"""Processes of a run, one per device: exchange of objects and tensors, lost peers, the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from asr import processes
from asr.training.checkpoints import how_to_resume
from werdict.console import PlainConsole, one_line
from werdict.errors import DIVERGED, LOST_PEER, PeerLost

if TYPE_CHECKING:  # commands that only decode print on the console, too
    import lightning.pytorch as pl

# what gloo reports in a process whose peer has ended: torch (2.13) has no type for it
GLOO = "gloo/transport"
POLL_S = 0.1
AGAIN_S = 20.0  # after a signal, one of the same kind ends all; schedulers may send two at once
SAID = (1, 2, DIVERGED)  # exit codes of processes that have printed why
HANDLED = (signal.SIGINT, *processes.ENDING)

console = PlainConsole(quiet=not processes.is_first_process())  # on which one of the processes of a run prints

T = TypeVar("T")


def is_started_as_rank(trainer: pl.Trainer) -> bool:
    """Return whether torchrun, SLURM or our own launcher has started one process per device."""
    environment = getattr(trainer.strategy, "cluster_environment", None)  # strategies of one device have none
    return environment is not None and environment.creates_processes_externally


def broadcast_object(trainer: pl.Trainer, make: Callable[[], T]) -> T:
    """Call ``make`` in the first process, and return its result in every process."""
    if trainer.world_size == 1:
        return make()
    # Lightning sets this up only in fit(), but the run's folder is needed before
    trainer.strategy.setup_environment()
    return trainer.strategy.broadcast(make() if trainer.is_global_zero else None)  # type: ignore[return-value]


def gather(obj: T) -> list[T]:
    """Return the objects of all processes, by rank; they are pickled, so they should be small."""
    if not (dist.is_available() and dist.is_initialized()):
        return [obj]
    # Lightning's all_gather takes only tensors of equal shapes
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, obj)
    return parts


def apply_coalesced(tensors: Iterable[Tensor], collective: Callable[[Tensor], Any]) -> None:
    """Apply a collective operation in place to tensors (…), once for all of a dtype on a device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}  # in the same order on all ranks
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = _flatten_dense_tensors(alike)
        collective(flat)
        torch._foreach_copy_(alike, _unflatten_dense_tensors(flat, alike))


@contextlib.contextmanager
def explaining_lost_peers() -> Iterator[None]:
    """Turn an error about the connection to another process of a run into one line: it is the end of that one.

    Raises:
        PeerLost: the connection was lost, and nothing else was wrong here before.
    """
    try:
        yield
    except RuntimeError as error:
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        if not isinstance(first, dist.DistError) and not (isinstance(first, RuntimeError) and GLOO in str(first)):
            raise
        raise PeerLost(
            "the connection to another process of this run was lost: it ended (and printed why, unless it was "
            "killed), or its machine is down"
        ) from error


def launch(command: str, overrides: Sequence[str], num_processes: int, run_dir: Path) -> int:
    """Run a command in one process per device, and wait for all.

    Torch starts the processes in sessions of their own, and when one fails, gives the others 30 s to end. The agent
    above it, ``elastic_launch``, would kill processes that need longer to save a checkpoint after a signal, and forget
    their exit codes. Here signals are forwarded, and the processes waited for.

    Args:
        command: such as ``train``.
        overrides: its command line.
        num_processes: on this machine.
        run_dir: folder of the run.

    Returns:
        0, or the exit code of the process that failed first, as a shell reports it.

    Raises:
        Terminated: a signal has ended them, and no process has said so.
        KeyboardInterrupt: the same, by Ctrl-C.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = str(probe.getsockname()[1])
    shared = {processes.RUN_DIR_VARIABLE: str(run_dir), processes.LAUNCHER_VARIABLE: str(os.getpid())}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port, "WORLD_SIZE": str(num_processes), "NODE_RANK": "0"}
    ranks = SubprocessContext(
        command,
        sys.executable,
        dict.fromkeys(range(num_processes), ("-m", "asr.commands", command, *overrides)),
        {rank: {**shared, "LOCAL_RANK": str(rank)} for rank in range(num_processes)},
        DefaultLogsSpecs(os.devnull),
    )
    # read by start(): torch's own handlers raise, and what is raised in a finalizer is lost
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    with processes.restored_handlers((*HANDLED, signal.SIGQUIT)):
        try:
            ranks.start()
            forwarded = forward_signals(ranks)
            result = ranks.wait(period=POLL_S)
            assert result is not None  # it waits without a limit
            codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
            return _exit_code(codes, forwarded, num_processes, run_dir)
        finally:
            ranks.close(signal.SIGKILL)


def forward_signals(ranks: SubprocessContext) -> Collection[signal.Signals]:
    """Pass on signals from now on; return those that were.

    A second Ctrl-C raises KeyboardInterrupt, and another signal that comes again some seconds later `Terminated`.
    """
    forwarded: dict[signal.Signals, float] = {}

    def forward(received: int, _: object) -> None:
        number, now = signal.Signals(received), time.monotonic()
        if number == signal.SIGINT in forwarded:
            raise KeyboardInterrupt
        if now > forwarded.setdefault(number, now) + AGAIN_S:
            raise processes.Terminated(number, lambda: "")
        for rank in ranks.subprocess_handlers.values():
            rank.proc.send_signal(number)  # does nothing to one that has ended

    processes.listen(forward, HANDLED)
    return forwarded


def _exit_code(
    codes: Mapping[int, int], forwarded: Collection[signal.Signals], num_processes: int, run_dir: Path
) -> int:
    """Return the exit code of all processes together; say which one failed, unless it has said why.

    Args:
        codes: of processes that failed, by rank, in the order in which they were noticed.
        forwarded: signals that were passed on to them.
        num_processes: how many there are.
        run_dir: folder of the run.
    """
    if not codes:
        return 0
    # torch ends the others by SIGTERM
    follow = {processes.TRY_AGAIN, processes.INTERRUPTED, -signal.SIGTERM, *(-number for number in forwarded)}
    if signal.SIGINT in forwarded and {*codes.values()} <= follow:
        if codes.get(0) == processes.TRY_AGAIN:
            return processes.INTERRUPTED  # it has printed what was saved
        raise KeyboardInterrupt
    if processes.TRY_AGAIN in codes.values() and {*codes.values()} <= follow | {-signal.SIGKILL}:
        return processes.TRY_AGAIN  # a process that still had work to do has printed how to resume
    if forwarded and {*codes.values()} <= follow:
        raise processes.Terminated([*forwarded][-1], lambda: "")
    causes = [rank for rank, code in codes.items() if code not in follow and code != LOST_PEER]
    rank = [*causes, *(rank for rank, code in codes.items() if code != LOST_PEER), *codes][0]
    code = codes[rank]
    if code in SAID:
        return code
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if code == LOST_PEER:
        how = "lost its connection to the others"
    advice = "; the kernel does this when memory runs out: lower data.batch.max_duration_s" * (code == -signal.SIGKILL)
    line = (
        f"asr-train: process {rank} of {num_processes} {how}; the others were ended{advice}; {how_to_resume(run_dir)}"
    )
    print(one_line(line), file=sys.stderr)
    return 128 - code if code < 0 else code
