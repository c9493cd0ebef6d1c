"""Trainings of the tiny recognizer in a run's folder: small epochs, a validation now and then, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from asr.data.loading.loader import Batch, Workers
from asr.training.callbacks.checkpoints import CheckpointCallback
from asr.training.checkpoints import FORMAT, newest_good_checkpoint
from asr.training.module import TrainingModule
from asr.training.speech_data_module import ResumableLoader
from tests.training.tiny import batch_of, batches_loader, tiny_module, tiny_trainer

EPOCH = 4  # micro-batches of a process in an epoch
EXTRA = {"format": FORMAT, "config": {}, "tokenizer": {}, "data": {"fingerprint": "a", "folder": "b", "notes": []}}


class Made:
    """Batches that are functions of their seed, in epochs of a few."""

    def __getitem__(self, seed: int) -> Batch:
        return batch_of(60, 40, seed=seed)

    def updates(self, epoch: int, start: int, rank: int, world_size: int, accumulate: int) -> list[int]:
        return list(range(1000 * epoch + rank, 1000 * epoch + EPOCH * world_size, world_size))[start:]


class Validated(pl.Callback):
    """Keeps at which updates a validation ended."""

    def __init__(self) -> None:
        self.updates: list[int] = []

    def on_validation_end(self, trainer, pl_module):
        self.updates.append(trainer.global_step)


def scoring(module: TrainingModule, wers: Callable[[int], float]) -> TrainingModule:
    """Let every validation have a WER that is a function of the update."""
    module.on_validation_epoch_end = lambda: module.log("val/wer", wers(module.global_step))  # type: ignore[method-assign]
    return module


def run(
    run_dir: Path,
    max_steps: int = 10,
    callbacks: Sequence[pl.Callback] = (),
    wers: Callable[[int], float] = lambda update: 1 / update,
    validate_every: int | None = 3,
    **options: Any,
) -> TrainingModule:
    """Train, from the newest checkpoint of the folder if it has one."""
    torch.set_num_threads(1)
    module = scoring(tiny_module(), wers)
    module.dev_names, module.extra_state = ["dev"], EXTRA
    saves = any(isinstance(callback, CheckpointCallback) for callback in callbacks)
    given = [*callbacks] if saves else [*callbacks, CheckpointCallback(run_dir)]
    interval = (
        {"val_check_interval": validate_every * options.get("accumulate_grad_batches", 1)} if validate_every else {}
    )
    options = {
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_checkpointing": True,
        **options,
    }
    if not validate_every:
        options["limit_val_batches"] = 0
    trainer = tiny_trainer(max_steps, given, max_epochs=-1, **interval, **options)
    loader = ResumableLoader(Made(), Made(), Workers(0), trainer)  # type: ignore[arg-type]
    checkpoint = newest_good_checkpoint(run_dir)
    trainer.fit(
        module,
        loader,
        batches_loader([batch_of(50, seed=7), batch_of(30, seed=8)]),
        ckpt_path=None if checkpoint is None else checkpoint.path,
        weights_only=True,
    )
    return module


def state(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
