"""AdamW with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.transforms.adam import Adam


class AdamW(Composable):
    """Adam with decoupled weight decay; as fast as torch's fused class as long as no option changes the direction.

    State: the averages m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        common: see `optim.composable.CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2.
        Differs from HeavyBall: eps is added to the root, not a floor of it; betas[1] is always used.
    """

    has_beta2: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **common: Unpack[CommonOptions],
    ) -> None:
        common.setdefault("weight_decay", 0.01)
        super().__init__(params, [Adam(betas, eps)], lr=lr, **common)
