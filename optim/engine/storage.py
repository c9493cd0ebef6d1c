"""Statistics that are stored in bfloat16 and are float32 during a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.options import WHOLE
from optim.engine.param_batch import DRAW_KEY, Group, ParamBatch, State, Update, is_narrow
from optim.engine.random import Draw
from optim.engine.transform import Transform

STORAGE_DTYPES = ("float32", "bfloat16")


class StateStorage(Transform):
    """Says how averages of the parameter's shape are stored; leaves the update alone.

    With bfloat16 they are widened before a step and rounded after it: to one of the two neighbors in bfloat16, with
    probabilities that make the expectation right, so that changes below half a spacing add up instead of being lost.
    Statistics that `optim.engine.param_batch.zeros` does not make keep their dtype.

    Args:
        storage_dtype: "float32", or "bfloat16" for half of the bytes; float64 parameters then have float64 arithmetic.
        seed: of the rounding.

    Reference:
        Zamirai et al. 2021, "Revisiting BFloat16 Training", arXiv:2010.06192: stochastic rounding of weights.
    """

    allowed: ClassVar = {"storage_dtype": [*STORAGE_DTYPES], "seed": "[0, inf)" + WHOLE}

    def __init__(self, storage_dtype: str = "float32", seed: int = 0) -> None:
        super().__init__(storage_dtype=storage_dtype, seed=seed)

    def idle(self, group: Group) -> bool:
        """Return True: the engine does the work."""
        return True

    def draws(self, group: Group) -> bool:
        """Return whether there is anything to round."""
        return is_narrow(group)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update."""
        return update


def widened(state: Mapping[str, Tensor], like: Tensor) -> State:
    """Return statistics of any shape, with those in bfloat16 copied to the dtype of a tensor."""
    return {
        key: x.to(like.dtype) if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x for key, x in state.items()
    }


def rounded(value: Tensor, name: str, batch: ParamBatch) -> Tensor:
    """Return a statistic of a batch, (*) or (N, *), in bfloat16, rounded stochastically."""
    keys = [entry.state[DRAW_KEY] for entry in batch.entries]
    draw = Draw(batch.group["seed"], batch.step, f"round {name}", keys, value.device)
    flat = value.float().reshape(len(keys), -1)
    # a bfloat16 is the upper half of a float32: a random lower half, added, carries over with the right probability
    bits = draw.bits16(flat.shape[1]).to(torch.int32).bitwise_and_(0xFFFF).add_(flat.view(torch.int32))
    # a NaN whose lower half is full, as GPUs make them, would become zero
    bits = torch.where(flat.isnan(), flat.view(torch.int32), bits)
    return bits.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16).reshape(value.shape)
