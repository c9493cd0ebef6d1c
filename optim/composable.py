"""What the optimizers of the HeavyBall family have in common: options around a rule of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from torch import Tensor

from optim.engine.chain import Chain
from optim.engine.storage import StateStorage
from optim.engine.transform import Transform
from optim.transforms.learning_rate import WarmupLearningRate
from optim.transforms.weight_decay import DecoupledDecay


class CommonOptions(TypedDict, total=False):
    """Options of every `Composable`.

    Attributes:
        weight_decay: fraction lr · weight_decay that each step takes off the parameter, at least 0; default 0.
        warmup_steps: steps over which lr rises linearly to its full value, by each parameter's own count; default 0.
        storage_dtype: of the statistics that have the parameter's shape, see `StateStorage`; default "float32".
        seed: of the random numbers that the rule or the rounding to bfloat16 draws; default 0.
        maximize: ascend instead of descend; default False.
        skip_nonfinite: see `Chain`; default False.
    """

    weight_decay: float
    warmup_steps: int
    storage_dtype: str
    seed: int
    maximize: bool
    skip_nonfinite: bool


class Composable(Chain):
    """A rule of transforms with the options of `CommonOptions` around it.

        the rule  →  p ← p (1 − lr · weight_decay)  →  p ← p − lr · u

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        rule: transforms that make a direction of the gradient.
        lr: learning rate, at least 0; a 0-dimensional tensor is allowed.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.
    """

    def __init__(
        self, params: Any, rule: Sequence[Transform], *, lr: float | Tensor, **common: Unpack[CommonOptions]
    ) -> None:
        options: dict[str, Any] = {**common}
        transforms = [
            *rule,
            DecoupledDecay(options.pop("weight_decay", 0.0)),
            WarmupLearningRate(options.pop("warmup_steps", 0)),
            StateStorage(options.pop("storage_dtype", "float32"), options.pop("seed", 0)),
        ]
        super().__init__(params, transforms, lr=lr, **options)
