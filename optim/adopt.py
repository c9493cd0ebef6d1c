"""ADOPT with the options of the HeavyBall family."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.options import OR_NONE
from optim.engine.param_batch import ParamBatch, Update
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS, average_squares, beta2_of


class ADOPT(Composable):
    """Divide by the averaged squares of earlier gradients only, bound the result, then average; converges with any β₂.

    The rule is `EarlierMoment`. The first step of a parameter only begins the average: its update is zero.

    Use: in AdamW's place, at its rates, with `WarmupCosine`.

    State: 8 bytes per float32 parameter: the averages m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of the divided g and of g², each in [0, 1).
        eps: floor of the root, at least 0.
        clip_exponent: bounds the elements of the divided g by (t − 1)^clip_exponent; None for no bound.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Taniguchi et al. 2024, "ADOPT: Modified Adam Can Converge with Any β2 with the Optimal Rate", arXiv:2411.02853,
        algorithm 2, with the clipping of its later versions. The defaults are those of the authors' code,
        github.com/iShohei220/adopt.
        Differs: weight decay is decoupled, and acts at the first step too. HeavyBall has no clipping, and begins m with
        its first value.

    Examples:
        >>> param = nn.Parameter(torch.zeros(2))
        >>> optimizer = optim.ADOPT([param], lr=0.1)
        >>> for _ in range(3):
        ...     param.grad = torch.tensor([1.0, -5.0])
        ...     optimizer.step()
        ...     print(param.data)
        tensor([0., 0.])
        tensor([-0.0100,  0.0100])
        tensor([-0.0290,  0.0290])
    """

    has_beta2: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.9999),
        eps: float = 1e-6,
        clip_exponent: float | None = 0.25,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [EarlierMoment(betas, eps, clip_exponent)], lr=lr, **common)


class EarlierMoment(Transform):
    """Averages the update after it was divided by the root of the average of earlier squares.

        t = 1:  v ← u²,   u ← 0
        t > 1:  m ← β₁ m + (1 − β₁) clamp(u/max(√v, eps), ±(t − 1)^clip_exponent)
                v ← β₂ v + (1 − β₂) u²,   u ← m                                     β₂ may follow a schedule: `beta2_of`

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: floor of the root, at least 0.
        clip_exponent: at least 0; None for no clamping.
        name: see `Transform`.
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.9999)
    eps: Annotated[float, "[0, inf)"] = 1e-6
    clip_exponent: Annotated[float | None, "[0, inf)" + OR_NONE] = 0.25
    averages = ("exp_avg", "exp_avg_sq")
    foreach = shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the average of the divided updates, or zero at the first step."""
        u, beta2, exponent = update.value(), beta2_of(batch), batch.group["clip_exponent"]
        m, v = batch.state["exp_avg"], batch.state["exp_avg_sq"]
        on_device = isinstance(batch.step, Tensor)
        if not on_device and batch.step == 1:
            v.copy_(u * u)
            return Update(m)
        # u · min(1/√v, 1/eps): one pass fewer than u/max(√v, eps)
        divided = v.rsqrt().clamp_(max=1 / max(batch.group["eps"], torch.finfo(v.dtype).tiny)).mul_(u)
        if exponent is not None:
            bound = (batch.step - 1) ** exponent
            divided.clamp_(-bound, bound)
        if on_device:  # the first step in a form without `if`
            later = (batch.step > 1).to(v.dtype)  # True times a number would be float32
            divided.mul_(later)
            beta2 = beta2 * later
        average_squares(v, u, beta2)
        # the statistic itself leaves, not marked as overwritable: later transforms must not write to it
        return Update(m.lerp_(divided, 1 - batch.group["betas"][0]))
