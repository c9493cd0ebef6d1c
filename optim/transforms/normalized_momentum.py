"""The average of updates that were divided by their size first."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from optim.engine.param_batch import Group, ParamBatch, State, Update, zeros
from optim.engine.transform import Transform
from optim.transforms.adam import BETAS
from optim.transforms.adamw_kernel import same_layout, step_by_rms
from optim.transforms.beta2 import average_squares, beta2_correction, beta2_of, correction_count


class NormalizedMomentum(Transform):
    """Averages the update after it was divided by the root of its averaged square.

        v ← β₂ v + (1 − β₂) u²
        m ← β₁ m + (1 − β₁) u/(√(v/(1 − β₂ᵗ)) + eps),   u ← m/(1 − β₁ᵗ)             β₂ may follow a schedule: `beta2_of`

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Ziyin et al. 2020, "LaProp", arXiv:2002.04839, algorithm 1.
    """

    allowed: ClassVar = {"betas": BETAS, "eps": "[0, inf)"}
    foreach = True
    shardable = True

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-15, *, name: str = "") -> None:
        super().__init__(name=name, betas=betas, eps=eps)

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the averages m and v, both zero and in the parameter's shape."""
        return {"exp_avg": zeros(param, group), "exp_avg_sq": zeros(param, group)}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the average of the divided updates."""
        u, beta1, beta2 = update.value(), batch.group["betas"][0], beta2_of(batch)
        m, v = batch.state["exp_avg"], batch.state["exp_avg_sq"]
        on_cpu = u.device.type == "cpu" and not isinstance(batch.step, Tensor)
        if on_cpu and same_layout(u, m) and same_layout(m, v):
            _average_in_one_pass(u, m, v, batch)
        else:
            average_squares(v, u, beta2)
            root = v.sqrt().div_(beta2_correction(batch) ** 0.5).add_(batch.group["eps"])
            m.mul_(beta1).addcdiv_(u, root, value=1 - beta1)
        # the statistic itself leaves, not marked as overwritable: later transforms must not write to it
        return Update(m, 1 / (1 - beta1**batch.step))


def _average_in_one_pass(u: Tensor, m: Tensor, v: Tensor, batch: ParamBatch) -> None:
    """Do what `NormalizedMomentum` does to m and v by the kernel of torch's AdamW, in half the time.

    To the kernel m is a parameter that decays by β₁ and climbs, without momentum, by 1 − β₁ times the divided u.
    """
    step_by_rms(
        m,
        u,
        v,
        count=correction_count(batch),
        beta2=float(beta2_of(batch)),
        lr=1 - batch.group["betas"][0],
        decay=1.0,
        eps=batch.group["eps"],
        ascend=True,
    )
