"""LaProp with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.transforms.normalized_momentum import NormalizedMomentum


class LaProp(Composable):
    """Adam that divides before it averages, so that old gradients keep the scale of their time: `NormalizedMomentum`.

    State: the averages m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of the divided g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        common: see `optim.composable.CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Ziyin et al. 2020, "LaProp", arXiv:2002.04839, algorithm 1, which multiplies by lr before it averages: equal as
        long as lr is constant. Here a changed lr acts at once. HeavyBall has a floor of 1e-8 in place of eps.
    """

    has_beta2: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 4e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-15,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [NormalizedMomentum(betas, eps)], lr=lr, **common)
