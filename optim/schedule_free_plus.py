"""Schedule-Free+: Schedule-Free AdamW whose learning rate follows from the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from optim.composable import CommonOptions, Composable
from optim.engine.options import WHOLE
from optim.engine.param_batch import (
    Group,
    ParamBatch,
    ParamEntry,
    Scalar,
    State,
    Update,
    at_least,
    at_most,
    choose,
    progress,
    shared_zero,
)
from optim.engine.transform import Transform
from optim.schedule_free_adamw import ScheduleFree, ScheduleFreeAdamW
from optim.transforms.adam import Adam
from optim.transforms.learning_rate import ESTIMATED_LR, learning_rate


class ScheduleFreePlus(Composable):
    """Schedule-Free AdamW with momentum, whose step is the loss over the size of the gradient: no rate, no schedule.

    In order: `PolyakStep`, `Adam`, `AnnealedScheduleFree`. ``step`` takes a closure that returns the loss, as trainers
    have it; a step without one keeps the former rate, which is lr at first. The loss has to be near zero at its best,
    and that of the gradient: without accumulation, and without clipping before the step. The default lr is for language
    models; a tiny CTC model diverged with it, and trained with 0.003. Evaluate and save the model between `eval` and
    `train`.

    Use: on long runs of unknown length; with ``warmup_steps`` and twice as many steps in ``c_warmup``.

    State: 12 bytes per float32 parameter: the averages m (``exp_avg``) and v (``exp_avg_sq``) and z (``z``); and two
    numbers per tensor.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: factor of the rate that follows from the loss, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        sf_beta1: share of the average in the point of the gradients at first, in (0, 1).
        sf_beta1_max: its share from ``sf_beta1_anneal_steps`` on, in (0, 1).
        sf_beta1_anneal_steps: 0 leaves it at ``sf_beta1``.
        eps: added to Adam's root, at least 0.
        polyak_beta: decay of the averaged size of the gradient, in [0, 1).
        c_warmup: steps in which the average follows z alone.
        r: see `ScheduleFree`; the author also tries 2.
        weight_lr_power: see `ScheduleFree`.
        common: see `CommonOptions`; ``weight_decay`` is that of z at y, times the square of the rate: 20 or 50, not
            0.1.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Defazio 2026, "ScheduleFree+: Scaling Learning-Rate-Free & Schedule-Free Learning to Large Language Models",
        arXiv:2605.19095; AdamCScheduleFreePlusPaper of github.com/facebookresearch/schedule_free (70785b5). Also the
        defaults.
        Differs: each parameter counts its own steps; the average of sizes goes on from itself, where the code goes on
        from the corrected one; the loss is averaged over processes also if parameters are not
        sharded; lr may be 0.

    Examples:
        >>> param = nn.Parameter(torch.tensor([2.0]))
        >>> optimizer = optim.ScheduleFreePlus([param])
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = param.square().sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(20):
        ...     loss = optimizer.step(closure)
        >>> bool(loss < 0.1)
        True
    """

    has_beta2: ClassVar = True
    refused: ClassVar = ScheduleFreeAdamW.refused

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        betas: tuple[float, float] = (0.9, 0.95),
        sf_beta1: float = 0.9,
        sf_beta1_max: float = 0.965,
        sf_beta1_anneal_steps: int = 0,
        eps: float = 1e-8,
        polyak_beta: float = 0.0,
        c_warmup: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        averaging = AnnealedScheduleFree.of({**self.common_defaults, **common, **locals()})
        rule = [PolyakStep(polyak_beta=polyak_beta), Adam(betas, eps)]
        others: Any = {key: x for key, x in common.items() if key not in averaging.options}
        super().__init__(params, rule, lr=lr, ending=[averaging], **others)


class PolyakStep(Transform):
    """Lets the rate follow from the loss; the update stays as it is.

    With the loss F and the gradients g of all parameters at y, and x and z of `AnnealedScheduleFree`, at the step t:

        e ← polyak_beta e + (1 − polyak_beta) √(π/2) Σ ‖g‖₁
        γ = lr · max(0, F + β Σ ⟨g, z − x⟩)/(e/(1 − polyak_betaᵗ))

    ``polyak_beta`` is that of the first group.

    State of a group: the loss (``loss``), whether there was one (``has_loss``), e (``grad_l1_ema``), and γ/lr
    (``estimated_lr``).
    """

    joins_parameters = True
    polyak_beta: Annotated[float, "[0, 1)"]
    foreach = True

    def new_shared_state(self, group: Group) -> State:
        """Return numbers as tensors without axes."""
        zero = shared_zero(group)
        return {"loss": zero.clone(), "has_loss": zero.clone(), "grad_l1_ema": zero, ESTIMATED_LR: zero + 1}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Find the rate from all gradients."""
        first = groups[0][0]
        shared, decay, count = first["shared_state"], first["polyak_beta"], first["shared_state"]["steps"] + 1
        loss = shared["loss"].clone()
        # on the meta device, where steps are tried, there is nothing to send
        if dist.is_available() and dist.is_initialized() and not loss.is_meta:
            # gradients are those of all processes, and so must be the rate
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        l1, inner = torch.zeros_like(loss), torch.zeros_like(loss)
        for group, entries in groups:
            for members, grads, product in progress(entries, "z"):
                # y = (1 − β) z + β x with the β of the last step
                step = members[0].state["step"]
                inner += (product * (sf_beta(group, step + 1) / sf_beta(group, step))).to(loss)
                l1 += torch.stack(torch._foreach_norm(grads, 1)).sum().to(loss)
        size = decay * shared["grad_l1_ema"] + (1 - decay) * math.sqrt(math.pi / 2) * l1
        rate = ((loss + inner) * (-1 if first["maximize"] else 1)).clamp(min=0) / (size / (1 - decay**count))
        rate = torch.where((shared["has_loss"] == 0) | (size == 0), shared[ESTIMATED_LR], rate)
        for group, _ in groups:
            group["shared_state"]["grad_l1_ema"].copy_(size)
            group["shared_state"][ESTIMATED_LR].copy_(rate)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update unchanged."""
        return update


def sf_beta(group: Group, step: Scalar) -> Scalar:
    """Return β of a step t, which follows from t − 1: 1 − β falls geometrically."""
    steps, beta = group["sf_beta1_anneal_steps"], group["sf_beta1"]
    if not steps:
        return float(beta)
    share = at_most(at_least(step - 1, 0) / steps, 1.0)
    return 1 - (1 - beta) ** (1 - share) * (1 - group["sf_beta1_max"]) ** share


class AnnealedScheduleFree(ScheduleFree):
    """`ScheduleFree` whose β rises, whose decay follows γ², and whose average may begin late.

    With β(t) as `sf_beta` says, c = 1 up to t = ``c_warmup``, and sums that begin after it,

        z ← z − γ (u + γ weight_decay · y),   x ← (1 − c) x + c z,   y = (1 − β(t)) z + β(t) x

    State: as `ScheduleFree`.
    """

    allowed: ClassVar = {
        **{option: domain for option, domain in ScheduleFree.allowed.items() if option != "beta"},
        **{"sf_beta1": "(0, 1)", "sf_beta1_max": "(0, 1)"},
        **{"sf_beta1_anneal_steps": "[0, inf)" + WHOLE, "c_warmup": "[0, inf)" + WHOLE},
    }

    def __init__(self, **options: Any) -> None:
        Transform.__init__(self, **options)

    def beta(self, group: Group, step: Scalar = 1) -> Scalar:
        """Return β after a step."""
        return sf_beta(group, step)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Move z, let y follow the average, and return the rest of y's update."""
        group, y, z, t = batch.group, batch.param, batch.state["z"], batch.step
        lr, c, beta = learning_rate(batch), self.share_of_newest(batch), self.beta(group, t)
        if group["weight_decay"]:
            u = update.value()
            decayed = y * (u * y >= 0).to(y.dtype) if group["cautious_weight_decay"] else y
            update = Update(decayed * (lr * group["weight_decay"]) + u, overwritable=True)
        # as in `ScheduleFree`, but with the β that y was made with and the new one
        y.lerp_(z, 1 - beta / self.beta(group, t - 1) * (1 - c))
        update.times(lr).subtract_from(z)
        return update.times(lr * (1 - beta * (1 - c)))

    def share_of_newest(self, batch: ParamBatch) -> Scalar:
        """Count this step's weight unless the average has not begun, and return c."""
        c, later = super().share_of_newest(batch), batch.step > batch.group["c_warmup"]
        weight_sum = batch.state["weight_sum"]
        weight_sum.mul_(later.to(weight_sum.dtype) if isinstance(later, Tensor) else float(later))
        share: Scalar = choose(later, c, 1.0)
        return share
