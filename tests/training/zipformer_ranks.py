"""One of two processes that train a Zipformer together: in one go, and in two parts, as behind a kill."""

import os
import sys
from pathlib import Path

import torch
from lightning.pytorch.strategies import DDPStrategy

from tests.training import runs
from tests.training.test_zipformer import module_with_zipformer

folder = Path(sys.argv[1])
runs.tiny_module = module_with_zipformer  # type: ignore[attr-defined]


def train(name: str, max_steps: int) -> dict[str, torch.Tensor]:
    strategy = DDPStrategy(process_group_backend="gloo")
    options = {"devices": 2, "strategy": strategy, "accumulate_grad_batches": 2}
    return runs.run(folder / name, max_steps, **options).state_dict()


whole = train("whole", 6)
train("parts", 3)
torch.manual_seed(99)
torch.save({"whole": whole, "resumed": train("parts", 6)}, folder / f"{os.environ['RANK']}.pt")
