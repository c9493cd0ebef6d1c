"""The processes of a run: which one this is, and how they exchange objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch.distributed as dist

from asr.errors import PeerLost

# what gloo reports in a process whose peer has ended: torch (2.13) has no type for it
GLOO = "gloo/transport"

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
