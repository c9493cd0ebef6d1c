"""Two processes that average their gradients keep equal parameters, whatever their random states are."""

from __future__ import annotations

import random
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from optim.composable import Composable
from tests.optim.cases import CASES

WORLD = 2
# what the optimizers draw has to be equal too
RUNS = [(case, {}) for case in CASES]
RUNS += [(case, {"storage_dtype": "bfloat16"}) for case in CASES if issubclass(case.optimizer, Composable)]


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    for place, (case, options) in enumerate(RUNS):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)))
        optimizer = case.factory(model.named_parameters(), **options)
        random.seed(rank)
        torch.manual_seed(rank + 1)
        for _ in range(50):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
        torch.save(model.module.state_dict(), f"{folder}/{place}.{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_hold_the_same_bits_after_training(tmp_path: Path):
    mp.spawn(_train, args=(str(tmp_path),), nprocs=WORLD)
    for place, (case, options) in enumerate(RUNS):
        first, second = (torch.load(tmp_path / f"{place}.{rank}.pt", weights_only=True) for rank in range(WORLD))
        torch.manual_seed(0)
        start = nn.Linear(6, 20).weight
        assert not torch.equal(first["0.weight"], start)
        assert all(torch.equal(first[key], second[key]) for key in first), (case.name, options)
