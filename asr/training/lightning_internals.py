"""Everything private of Lightning (2.6) that is used here, and why there is no public way.

`tests/training/test_lightning_internals.py` fails when Lightning changes it, and when another file uses more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy


def number_logged_update(trainer: pl.Trainer) -> None:
    """Let loggers number the last update from 0: Lightning counts one too many or too few after a resumption.

    Its own callbacks, such as `LearningRateMonitor`, pass this number to loggers too.
    """
    trainer.fit_loop.epoch_loop._batches_that_stepped = max(0, trainer.global_step - 1)


def number_resumed_update(checkpoint: Mapping[str, Any]) -> None:
    """Let the update after a checkpoint have that number: Lightning counts the last one after callbacks have saved."""
    checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]


def is_validation_due(trainer: pl.Trainer) -> bool:
    """Return whether Lightning validates after the micro-batch that just ended.

    Its rule has many cases (val_check_interval, end of epoch, should_stop): a copy of it would differ.
    """
    fetcher: Any = trainer.fit_loop._data_fetcher
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def set_ddp_options(strategy: DDPStrategy, peer_timeout_s: int | None) -> None:
    """Set what is left at torch's defaults where Lightning constructs the strategy itself: for "auto", it alone can.

    Two defaults are needed. Buffers are broadcast: all ranks continue with the first one's state of whitening, which is
    what a checkpoint holds. The graph is not static: what a Zipformer draws changes it, and a rank that reads nothing.
    """
    if peer_timeout_s is not None:
        strategy._timeout = timedelta(seconds=peer_timeout_s)
    # a copy of all gradients less
    strategy._ddp_kwargs.setdefault("gradient_as_bucket_view", True)


def set_processes_of_a_model(strategy: ModelParallelStrategy, number: int) -> None:
    """Set how many processes share a model: Lightning takes a number before it counts them, or those of a machine."""
    strategy._tensor_parallel_size = number


def leave_to_wandb(logger: WandbLogger, arguments: Iterable[str]) -> None:
    """Do not pass arguments to ``wandb.init`` that Lightning always passes: wandb would warn about them."""
    for name in arguments:
        logger._wandb_init.pop(name, None)
