"""A moving average of the updates, kept in a type of its own."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, State, Update, state_dtype
from optim.options import OR_NONE
from optim.transform import Transform

TYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class TypedMomentum(Transform):
    """Replaces the update by its moving average, without correction of the bias towards zero.

        u ← beta1 m + (1 − beta1) u,   m ← u

    The new u is what leaves, before m is rounded to its type. Where that is not the update's type, beta1 and its
    product with m are rounded to it too.

    State: m (``exp_avg``), unless beta1 is None.

    Args:
        beta1: decay, in [0, 1); None leaves the update as it is.
        dtype_momentum: type of m, as torch's or by name; None for the type of the other statistics. Groups hold names.
        name: see `Transform`.

    Reference:
        t5x.adafactor; the rounding is JAX's promotion of a number times an array.
    """

    allowed: ClassVar = {"beta1": "[0, 1)" + OR_NONE}

    def __init__(
        self, beta1: float | None = 0.9, dtype_momentum: torch.dtype | str | None = None, *, name: str = ""
    ) -> None:
        super().__init__(name=name, beta1=beta1, dtype_momentum=name_of_type(dtype_momentum))

    def check(self, group: Group) -> None:
        """Refuse types that are none."""
        name_of_type(group["dtype_momentum"])

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return an average of zero, where there is one."""
        if group["beta1"] is None:
            return {}
        name = name_of_type(group["dtype_momentum"])
        dtype = state_dtype(param) if name is None else TYPES[name]
        return {"exp_avg": torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)}

    def __call__(self, update: Update, batch: Batch) -> Update | Tensor:
        """Return the average."""
        beta1 = batch.group["beta1"]
        if beta1 is None:
            return update
        average: Tensor = batch.state["exp_avg"]
        if average.dtype == update.direction.dtype:
            return average.lerp_(update.value(), 1 - beta1)
        decayed = average * torch.tensor(beta1, dtype=average.dtype).item()
        new = update.writable().mul_(1 - beta1).add_(decayed)
        average.copy_(new)
        return Update(new, free=True)


def name_of_type(dtype: Any) -> str | None:
    """Return the name of a floating-point type that is given by itself or by its name.

    Raises:
        ValueError: it is none.
    """
    name = str(dtype).removeprefix("torch.")
    if dtype is not None and name not in TYPES:
        raise ValueError(f"dtype_momentum must be {', '.join(TYPES)} or None, given {dtype!r}")
    return None if dtype is None else name
