"""RMSprop with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.param_batch import ParamBatch, Update, at_least
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS, average_squares, beta2_correction, beta2_of


class RMSprop(Composable):
    """Divide the gradient by the root of its averaged square, without bias and without momentum.

    The rule is `RootMeanSquare`.

    Use: as a baseline without momentum, with `WarmupCosine`.

    State: 4 bytes per float32 parameter: the average v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: each in [0, 1): the first is used by ``mars`` alone, the second is the decay of the average of g².
        eps: floor of the root, at least 0.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Tieleman and Hinton 2012, "Neural Networks for Machine Learning", lecture 6.5. The decay of 0.9 is the
        lecture's; lr and eps, which it leaves open, are those of torch.optim.RMSprop.
        Differs from torch.optim.RMSprop: the bias is corrected, and eps is a floor, as in HeavyBall.

    Examples:
        >>> param = nn.Parameter(torch.zeros(2))
        >>> optimizer = optim.RMSprop([param], lr=0.1)
        >>> param.grad = torch.tensor([0.001, -1000.0])
        >>> optimizer.step()
        >>> param.data  # the size of a gradient does not matter
        tensor([-0.1000,  0.1000])
    """

    has_beta2: ClassVar = True
    refused: ClassVar = {
        **Composable.refused,
        "r": "it weights the average of Schedule-Free, and RMSprop averages no parameters",
        "weight_lr_power": "it weights the average of Schedule-Free, and RMSprop averages no parameters",
    }

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.9),
        eps: float = 1e-8,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [RootMeanSquare(betas, eps)], lr=lr, **common)


class RootMeanSquare(Transform):
    """Divides by the root of the averaged square.

        v ← β₂ v + (1 − β₂) u²
        u ← u/max(√(v/(1 − β₂ᵗ)), eps)                                              β₂ may follow a schedule: `beta2_of`

    State: v (``exp_avg_sq``).

    Args:
        betas: the second is the decay of the average, in [0, 1).
        eps: floor of the root, at least 0.
        name: see `Transform`.
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.9)
    eps: Annotated[float, "[0, inf)"] = 1e-8
    averages = ("exp_avg_sq",)
    foreach = shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update over the root of its averaged square."""
        u, beta2 = update.value(), beta2_of(batch)
        v = average_squares(batch.state["exp_avg_sq"], u, beta2)
        # u/max(√v/c, eps) = c u · min(1/√v, 1/(c eps)): two passes fewer over the elements
        c = beta2_correction(batch) ** 0.5
        largest = 1 / at_least(c * batch.group["eps"], torch.finfo(v.dtype).tiny)
        return Update(v.rsqrt().clamp_(max=largest).mul_(u), c, overwritable=True)
