"""The processes of a training: which one this is, and what they tell each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch.distributed as dist

T = TypeVar("T")

# set by torchrun and by our own launcher, and by SLURM
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")


def is_first_process() -> bool:
    """Return whether this is the process that writes and prints, as far as the environment tells."""
    ranks = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return not ranks or ranks[0] == "0"


def is_started_as_rank(trainer: pl.Trainer) -> bool:
    """Return whether torchrun, SLURM or our own launcher has started one process per device."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    return environment is not None and environment.creates_processes_externally


def agree(trainer: pl.Trainer, make: Callable[[], T]) -> T:
    """Return what the first process makes, in every process."""
    if trainer.world_size == 1:
        return make()
    # every process runs already: meet now, not only when training starts
    trainer.strategy.setup_environment()
    return trainer.strategy.broadcast(make() if trainer.is_global_zero else None)  # type: ignore[return-value]


def gather(mine: T) -> list[T]:
    """Return what every process has, by rank; plain data or small objects."""
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts
