"""LaProp with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.transforms.adam import NormalizedMomentum


class LaProp(Composable):
    """Divide the gradient by the root of its averaged square first, then average: one large gradient does not turn
    later steps.

    The rule is `NormalizedMomentum`.

    Use: where AdamW is unstable with a small β₂, with `WarmupCosine`.

    State: 8 bytes per float32 parameter: the averages m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of the divided g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Ziyin et al. 2020, "LaProp", arXiv:2002.04839, algorithm 1. The defaults are those of the authors' code,
        github.com/Z-T-WANG/LaProp-Optimizer.
        Differs: the paper multiplies by lr before it averages, which is the same as long as lr is constant; here a
        changed lr acts at once. Weight decay is multiplied by lr. HeavyBall has a floor of 1e-8 in place of eps.

    Examples:
        >>> param = nn.Parameter(torch.zeros(()))
        >>> optimizer = optim.LaProp([param], lr=0.1)
        >>> for gradient in (1000.0, 1.0, 1.0):
        ...     param.grad = torch.tensor(gradient)
        ...     optimizer.step()
        ...     print(f"{param.item():.4f}")
        -0.1000
        -0.1474
        -0.1774
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
