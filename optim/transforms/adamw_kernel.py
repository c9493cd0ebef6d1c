"""torch's kernel of AdamW: which tensors suit it, and without momentum, a division by averaged squares and a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optim.engine.param_batch import TensorList, constant

FUSED_ON = ("cpu", "cuda", "meta", "mps", "xpu")


def has_kernel(device: torch.device, lr: Any) -> bool:
    """Return whether torch has its kernel of AdamW for a device and a rate."""
    # none for rates that are tensors on the meta device, where optimizers are tried (torch 2.13)
    return device.type in FUSED_ON and not (device.type == "meta" and isinstance(lr, Tensor))


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Return whether a kernel that walks through the memory of both meets the same elements.

    Tensors of unlike shapes, as after ``param.data`` was replaced by a larger tensor, have no such layout: a kernel
    would write beyond the smaller one.
    """
    if isinstance(a, TensorList):
        return all(map(same_layout, a.tensors, listed(b)))
    # nearly all tensors are contiguous, and that is asked faster
    return a.shape == b.shape and ((a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride())


def listed(x: Tensor) -> list[Tensor]:
    """Return the tensors of a `TensorList`, or the one tensor, of any shape, as torch's kernels take them."""
    return x.tensors if isinstance(x, TensorList) else [x]


def step_by_rms(
    target: Tensor,
    u: Tensor,
    v: Tensor,
    *,
    count: float | None,
    beta2: float,
    lr: float | Tensor,
    decay: float,
    eps: float,
    ascend: bool = False,
) -> None:
    """Average u² in v, and move the target by the update over its root mean square, in one pass over memory.

        v ← β₂ v + (1 − β₂) u²
        target ← (1 − lr · decay) target − lr · u/(√(v/(1 − β₂^count)) + eps)                  + instead of − to ascend

    Args:
        target: any shape; changed in place. u and v have its shape and layout.
        u: the update, which is not modified.
        v: averaged squares, changed in place.
        count: of the averaged squares; None for no correction.
        beta2: decay of the average.
        lr: length of the step; a tensor of one element is allowed.
        decay: see above.
        eps: added to the root.
        ascend: add the step instead of subtracting it.
    """
    # torch.optim.adamw.adamw calls this too, but takes as long for that as the kernel does for most tensors
    if isinstance(u, TensorList):
        tensors = listed(target), u.tensors, _zeros_like(u.tensors), listed(v)
    else:
        tensors = [target], [u], [torch.zeros_like(u)], [v]
    # the kernel corrects by 1 − β₂^count: an infinite count turns that off
    torch._fused_adamw_(
        *tensors,  # zeros are the momentum, which beta1=0 leaves without effect
        [],
        # which a GPU reads as float32
        [constant(math.inf if count is None else count, tensors[1][0], torch.float32)] * len(tensors[1]),
        amsgrad=False,
        beta1=0.0,
        beta2=beta2,
        lr=lr,
        weight_decay=decay,
        eps=eps,
        maximize=ascend,
        grad_scale=None,
        found_inf=None,
    )


def _zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    if not all(x.is_contiguous() for x in tensors):
        return [torch.zeros_like(x) for x in tensors]
    sizes = [x.numel() for x in tensors]
    parts = tensors[0].new_zeros(sum(sizes)).split(sizes)
    return [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]
