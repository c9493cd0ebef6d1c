"""One rank of a small DDP training; torchrun starts two, and the first writes the weights.

torchrun --nproc-per-node=2 scripts/gpu_parts/ranks.py DEVICE BACKEND FILE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from optim import AdamW

NUM_UPDATES, SIZE, WIDTH = 5, 8, 32


def trained(device: str, rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """Return the weights after updates on batches of which each rank has its share."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(device)
    model = DistributedDataParallel(plain) if dist.is_initialized() else plain
    optimizer = AdamW(plain.parameters(), lr=0.01)
    for update in range(NUM_UPDATES):
        batch = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(update))
        optimizer.zero_grad()
        model(batch[rank::world_size].to(device)).square().mean().backward()
        optimizer.step()
    return {name: value.cpu() for name, value in plain.state_dict().items()}


if __name__ == "__main__":
    chosen, backend, file = sys.argv[1:]
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # each rank has a GPU of its own; with gloo they share one
    dist.init_process_group(backend)
    weights = trained(chosen, dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        torch.save(weights, Path(file))
    dist.destroy_process_group()
