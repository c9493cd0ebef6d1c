"""torch's kernel of AdamW: which tensors suit it, and without momentum, a division by averaged squares and a step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optim.engine.batch import constant

FUSED_ON = ("cpu", "cuda", "mps", "xpu")


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Return whether a kernel that walks through the memory of both meets the same elements.

    Tensors of unlike shapes, as after ``param.data`` was replaced by a larger tensor, have no such layout: a kernel
    would write beyond the smaller one.
    """
    # nearly all tensors are contiguous, and that is asked faster
    return a.shape == b.shape and ((a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride())


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
        target: changed in place; it has the layout of u and v.
        u: the update, which is not modified.
        v: averaged squares, changed in place.
        count: of the averaged squares; None for no correction.
        beta2: decay of the average.
        lr: length of the step.
        decay: see above.
        eps: added to the root.
        ascend: add the step instead of subtracting it.
    """
    # torch.optim.adamw.adamw calls this too, but takes as long for that as the kernel does for most tensors
    torch._fused_adamw_(
        [target],
        [u],
        [torch.zeros_like(u)],  # momentum, which beta1=0 leaves without effect
        [v],
        [],
        # the kernel corrects by 1 − β₂^count: an infinite count turns that off
        [constant(math.inf if count is None else count, u)],
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
