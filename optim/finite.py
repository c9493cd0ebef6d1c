"""Whether all gradients are finite, on all processes that train together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Return whether no element is NaN or infinite on any process.

    Waits for the device once. Where torch.distributed is initialised, every process must call this.
    """
    # a tensor without elements has no largest one
    gradients = [gradient for gradient in gradients if gradient.numel() > 0]
    # the largest magnitude, unlike a sum of squares, cannot overflow; NaN passes through it
    largest = get_total_norm(gradients, norm_type=float("inf")) if gradients else torch.zeros(())
    bad = (~torch.isfinite(largest)).to(torch.float32)
    if dist.is_available() and dist.is_initialized():
        if dist.get_backend() == "nccl":
            bad = bad.cuda()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bad.item() == 0
