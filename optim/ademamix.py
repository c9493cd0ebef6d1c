"""AdEMAMix with the options of the HeavyBall family."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Unpack

from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.options import OR_NONE, WHOLE
from optim.engine.param_batch import Group, ParamBatch, Scalar, State, Update, at_most, choose, zeros
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS, average_squares, beta2_correction, beta2_of


class AdEMAMix(Composable):
    """Adam with a second, very slow average of the gradient beside the first: old gradients stay useful for long.

    The rule is `TwoAverages`. Runs should be long: after a resumption with a fresh state, or within a few thousand
    updates, the slow average is hardly more than zero.

    Use: on long runs, in AdamW's place at its rates, with `WarmupCosine`; both warm-ups as long as the run.

    State: 12 bytes per float32 parameter, 8 if betas[0] is 0: the averages m₁ (``exp_avg``), m₂ (``exp_avg_slow``) and
    v (``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the fast average of g, of the average of g², and of the slow average of g, each in [0, 1).
        alpha: weight of the slow average, at least 0; the paper has 5 to 10.
        beta3_warmup: steps over which the slow average becomes as slow as betas[2] says; None for none.
        alpha_warmup: steps over which alpha rises linearly to its value; None for none.
        eps: added to the root, at least 0.
        common: see `CommonOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Pagliardini et al. 2024, "The AdEMAMix Optimizer: Better, Faster, Older", arXiv:2409.03137, algorithm 1. The
        defaults are those of the authors' code, github.com/apple/ml-ademamix.

    Examples:
        >>> param = nn.Parameter(torch.zeros(1))
        >>> optimizer = optim.AdEMAMix([param], lr=0.1, betas=(0.9, 0.999, 0.99), alpha=10.0)
        >>> param.grad = torch.ones(1)
        >>> optimizer.step()
        >>> param.data  # Adam's step, and a tenth of it from the slow average
        tensor([-0.1100])
    """

    has_beta2: ClassVar = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 2.0,
        beta3_warmup: int | None = None,
        alpha_warmup: int | None = None,
        eps: float = 1e-8,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, [TwoAverages.of(locals())], lr=lr, **common)


class TwoAverages(Transform):
    """Divides a fast and a slow average of the update by the root of its averaged square.

        m₁ ← β₁ m₁ + (1 − β₁) u,   m₂ ← β₃(t) m₂ + (1 − β₃(t)) u,   v ← β₂ v + (1 − β₂) u²
        u = (m₁/(1 − β₁ᵗ) + α(t) m₂) / (√v/√(1 − β₂ᵗ) + eps)                        β₂ may follow a schedule: `beta2_of`

    With ``alpha_warmup`` = T, α(t) = α · min(1, t/T). With ``beta3_warmup`` = T the half-life of m₂ rises linearly from
    that of m₁ until t = T: β₃(t) = 0.5^(1/h), h = (1 − t/T) ln 0.5/ln β₁ + (t/T) ln 0.5/ln β₃.

    The options are those of `AdEMAMix`.

    State: m₁ (``exp_avg``) unless β₁ is 0, m₂ (``exp_avg_slow``) and v (``exp_avg_sq``).
    """

    betas: Annotated[tuple[float, float, float], (*BETAS, "[0, 1)")]
    alpha: Annotated[float, "[0, inf)"]
    beta3_warmup: Annotated[int | None, "[1, inf)" + WHOLE + OR_NONE]
    alpha_warmup: Annotated[int | None, "[1, inf)" + WHOLE + OR_NONE]
    eps: Annotated[float, "[0, inf)"]
    foreach = True
    shardable = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return averages of zero in the parameter's shape."""
        names = ("exp_avg_slow", "exp_avg_sq") if group["betas"][0] == 0 else ("exp_avg", "exp_avg_slow", "exp_avg_sq")
        return {name: zeros(param, group) for name in names}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the quotient."""
        group, state, u = batch.group, batch.state, update.value()
        beta1, warmup = group["betas"][0], group["alpha_warmup"]
        fast = state["exp_avg"].lerp_(u, 1 - beta1) if beta1 else u
        slow = state["exp_avg_slow"].lerp_(u, 1 - slow_decay(batch))
        v = average_squares(state["exp_avg_sq"], u, beta2_of(batch))
        alpha: Scalar = group["alpha"] * (at_most(batch.step / warmup, 1.0) if warmup else 1.0)
        c1, c2 = 1 - beta1**batch.step, beta2_correction(batch) ** 0.5
        # (m₁/c₁ + α m₂)/(√v/c₂ + eps) = c₂/c₁ (m₁ + c₁ α m₂)/(√v + c₂ eps) saves passes over the elements
        mixed = (slow * (c1 * alpha)).add_(fast)
        return Update(mixed.div_(v.sqrt().add_(c2 * group["eps"])), c2 / c1, overwritable=True)


def slow_decay(batch: ParamBatch) -> Scalar:
    """Return β₃ of this step."""
    beta1, _, beta3 = batch.group["betas"]
    warmup, t = batch.group["beta3_warmup"], batch.step
    if not warmup:
        return float(beta3)
    # the authors' 1e-8 keeps the logarithm of β₁ = 0 finite
    fast, slow = (math.log(0.5) / math.log(beta + 1e-8) - 1 for beta in (beta1, beta3))
    share = t / warmup
    decay: Scalar = choose(t < warmup, 0.5 ** (1 / ((1 - share) * fast + share * slow + 1)), beta3)
    return decay
