"""One of two processes that train a divided model; it saves what each run left in a file of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy

import optim
from asr.training.callbacks.checkpoints import WeightAveraging
from asr.training.fsdp import FsdpStrategy
from asr.training.module import TrainingModule
from tests.training import runs
from tests.training.heads import module_with
from tests.training.test_zipformer import module_with_zipformer
from tests.training.tiny import tiny_module

RANK = int(os.environ["RANK"])
OPTIONS: dict[str, Any] = {"devices": 2, "use_distributed_sampler": False}
MODULES: dict[str, Callable[[], TrainingModule]] = {
    "transformer": partial(tiny_module, partial(optim.Muon, lr=0.01)),
    "zipformer": module_with_zipformer,
    "transducer": partial(module_with, "transducer"),
    "two views of two layers": partial(module_with, "two views of two layers"),
}


def run(folder: Path, strategy: Any, make: Callable[[], TrainingModule], max_steps: int = 6) -> dict[str, Any]:
    """Train with accumulated micro-batches, clipping, averages and validations; return losses and what is in the last
    checkpoint."""
    runs.tiny_module = make  # type: ignore[attr-defined]
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, **OPTIONS, "strategy": strategy}
    runs.run(folder, max_steps, [WeightAveraging()], **options)
    return {}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name, make in MODULES.items():
        run(folder / name / "ddp", DDPStrategy(process_group_backend="gloo"), make)
        strategy = FsdpStrategy()
        strategy.check_sizes(2)
        run(folder / name / "fsdp", strategy, make, 4)
        strategy = FsdpStrategy()
        strategy.check_sizes(2)
        run(folder / name / "fsdp", strategy, make)
        print(name, "done", flush=True)
