"""Whether all gradients are finite, on all processes of a distributed run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm

from optim.engine.fsdp import local


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Return whether no element of gradients of any shape is NaN or infinite on any process.

    Waits for the device once. If torch.distributed is initialized, every process must call this.
    """
    # amax of a tensor without elements raises
    gradients = [gradient for gradient in map(local, gradients) if gradient.numel() > 0]
    # the largest magnitude, unlike a sum of squares, cannot overflow; NaN passes through it
    largest = get_total_norm(gradients, norm_type=float("inf")) if gradients else torch.zeros(())
    bad = (~torch.isfinite(largest)).to(torch.float32)
    if dist.is_available() and dist.is_initialized():
        # NCCL reduces CUDA tensors only, also when a model's parameters are on the CPU
        if dist.get_backend() == "nccl":
            bad = bad.cuda()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bad.item() == 0
