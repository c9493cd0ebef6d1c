"""Schedule-Free AdamW: Adam's second moment, and an average of the iterates instead of momentum and of a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim.composable import CommonOptions, Composable
from optim.engine.blocks import parts_of
from optim.engine.options import SWITCH, WHOLE
from optim.engine.param_batch import HALF, Group, ParamBatch, Scalar, State, Update, copied, zero_per_axes
from optim.engine.saved_state import named_parameters
from optim.engine.transform import FusedTransform, Transform
from optim.transforms.adam import average_squares, beta2_correction, beta2_of, has_kernel, same_layout, step_by_rms
from optim.transforms.learning_rate import learning_rate

EVALUATING = "evaluating"
"""Whether the parameters of a group hold x; in the group's shared state."""
TRAINING_POINT = "training_point"
"""The statistic that keeps y while a parameter holds x."""


class ScheduleFree(Transform):
    """Steps with one sequence, z, and evaluates at its average, x; gradients are taken in between, at y.

    With the update u that arrives, the learning rate γ of step t, and γ_max, the largest one so far:

        z ← z − γ (u + weight_decay · y)                      y · [u y ≥ 0] in place of this y if the decay is cautious
        c = w_t/(w_1 + … + w_t),   w_t = tʳ · γ_max^weight_lr_power
        x ← (1 − c) x + c z,   y = (1 − β) z + β x

    Parameters hold y. x is not stored, and follows from y and z: `Chain.eval` puts it into the parameters. In this form

        y ← (1 − c) y + c z − γ (1 − β (1 − c)) (u + weight_decay · y)                  with the z before the step

    Takes the place of the learning rate and of weight decay, and must be the last transform. β takes the place of
    momentum: what comes before should have none.

    State: z (``z``), γ_max (``lr_max``), and w_1 + … + w_t in units of w_t (``weight_sum``).

    Args:
        beta: share of the average in the point of the gradients, in (0, 1].
        weight_decay: at least 0.
        warmup_steps: steps over which γ rises linearly to lr, by each parameter's own count.
        r: power of the step in the weights of the average, at least 0; 0 weights all alike.
        weight_lr_power: power of γ_max in the weights of the average, at least 0: steps of the warm-up count less.
        cautious_weight_decay: see `shrink`.
        name: see `Transform`.

    Reference:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682, section 1 and algorithm 1; γ_max instead of γ
        as in the authors' package schedulefree 1.4.1, which is the same while the learning rate does not fall.

    Examples:
        >>> param = nn.Parameter(torch.ones(1))
        >>> optimizer = optim.chain(optim.ScheduleFree(beta=0.9), lr=0.5)([param])  # plain gradient descent, averaged
        >>> for _ in range(4):
        ...     param.grad = param.detach().clone()
        ...     optimizer.step()
        >>> optimizer.eval()
        >>> f"{param.item():.3f}"
        '0.190'
    """

    allowed: ClassVar = {
        "beta": "(0, 1]",
        "weight_decay": "[0, inf)",
        "warmup_steps": "[0, inf)" + WHOLE,
        "r": "[0, inf)",
        "weight_lr_power": "[0, inf)",
        "cautious_weight_decay": SWITCH,
    }
    has_eval_mode: ClassVar = True
    foreach = shardable = True

    def __init__(
        self,
        beta: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        cautious_weight_decay: bool = False,
        *,
        name: str = "",
    ) -> None:
        options = {"weight_decay": weight_decay, "cautious_weight_decay": cautious_weight_decay, "r": r}
        super().__init__(name=name, beta=beta, warmup_steps=warmup_steps, weight_lr_power=weight_lr_power, **options)

    def beta(self, group: Group, step: Scalar = 1) -> Scalar:
        """Return β after a parameter's step."""
        return float(group["beta"])

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return a z that equals the parameter, in its shape, and γ_max and a sum of weights of zero, (1, …)."""
        state: State = {"z": copied(param), "lr_max": zero_per_axes(param, ()), "weight_sum": zero_per_axes(param, ())}
        # a state that was saved between `eval` and `train`
        return {**state, TRAINING_POINT: torch.empty_like(param)} if self._has_moved(group) else state

    def new_shared_state(self, group: Group) -> State:
        """Return that parameters hold y."""
        return {EVALUATING: False}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Move z, let y follow the average, and return the rest of y's update."""
        y, lr, c = batch.param, learning_rate(batch), self.share_of_newest(batch)
        if batch.group["weight_decay"]:
            u = update.writable()
            decayed = y * (u * y >= 0).to(y.dtype) if batch.group["cautious_weight_decay"] else y
            update = Update(u.add_(decayed, alpha=batch.group["weight_decay"]), overwritable=True)
        # x is eliminated from the paper's three sequences: y ← (1 − c) y + c z − γ (1 − β (1 − c)) u, with the old z
        y.lerp_(batch.state["z"], c)
        update.times(lr).subtract_from(batch.state["z"])
        return update.times(lr * (1 - self.beta(batch.group) * (1 - c)))

    def share_of_newest(self, batch: ParamBatch) -> Scalar:
        """Count this step's weight, and return c."""
        group, lr_max, weight_sum = batch.group, batch.state["lr_max"], batch.state["weight_sum"]
        raised = lr_max.clamp(min=learning_rate(batch))
        former, newest = batch.read(lr_max), batch.read(raised)
        # sums in units of the newest weight: γ² of a small γ would underflow
        if isinstance(newest, Tensor):
            growth: Scalar = torch.where(newest > 0, former / newest, 1.0)
        else:
            growth = former / newest if newest > 0 else 1.0
        growth = growth ** group["weight_lr_power"] * ((batch.step - 1) / batch.step) ** group["r"]
        # only now: what `read` returns may be a view
        lr_max.copy_(raised)
        return 1 / batch.read(weight_sum.mul_(growth).add_(1))

    def eval(self, optimizer: Optimizer) -> None:
        """Put x = y + (1 − 1/β) (z − y) into every parameter that has stepped, and keep y."""
        for name, param, group in named_parameters(optimizer):
            state = optimizer.state.get(param)
            if self._has_moved(group) or not state:
                continue
            for part, shape, suffix in _pieces(name, param, group):
                # a copy: computing it back from x would round
                y = state[self.prefix + TRAINING_POINT + suffix] = part.detach().reshape(shape).clone()
                if param.dtype in HALF:  # what rounding took off belongs to its value
                    y = y.float() + state["rounding_error" + suffix]
                weight = 1 - 1 / self.beta(self.unprefixed(group), state["step"])
                part.copy_(y.lerp(state[self.prefix + "z" + suffix], weight).view(part.shape))
        for group in optimizer.param_groups:
            group["shared_state"][self.prefix + EVALUATING] = True

    def train(self, optimizer: Optimizer) -> None:
        """Put back the y that `eval` has kept."""
        for name, param, group in named_parameters(optimizer):
            for part, _, suffix in _pieces(name, param, group) if self._has_moved(group) else ():
                if self.prefix + TRAINING_POINT + suffix in optimizer.state.get(param, {}):
                    part.copy_(optimizer.state[param].pop(self.prefix + TRAINING_POINT + suffix).view(part.shape))
        for group in optimizer.param_groups:
            group["shared_state"][self.prefix + EVALUATING] = False

    def is_evaluating(self, optimizer: Optimizer) -> bool:
        """Return whether any parameters hold x."""
        return any(map(self._has_moved, optimizer.param_groups))

    def _has_moved(self, group: Group) -> bool:
        return bool(group.get("shared_state", {}).get(self.prefix + EVALUATING, False))


def _pieces(name: str, param: Tensor, group: Group) -> Iterator[tuple[Tensor, torch.Size, str]]:
    """Yield what steps alone of a parameter: a view, the shape of its statistics, and the suffix of their names."""
    parts = parts_of(name, param.shape, group)
    yield from ((part.of(param), part.whole, part.suffix) for part in parts)
    if not parts:
        yield param, param.shape, ""


class FirstBetaScheduleFree(ScheduleFree):
    """`ScheduleFree` with the first of two ``betas``, where Adam has its momentum."""

    allowed: ClassVar = {
        **{option: domain for option, domain in ScheduleFree.allowed.items() if option != "beta"},
        "betas": ("(0, 1]", "[0, 1)"),
    }

    def __init__(self, betas: tuple[float, float], **options: Any) -> None:
        Transform.__init__(self, betas=betas, **options)

    def beta(self, group: Group, step: Scalar = 1) -> Scalar:
        """Return β."""
        return float(group["betas"][0])


class ScaleByRms(FusedTransform):
    """Divides the update by the root of its averaged square.

        v ← β₂ v + (1 − β₂) u²,   u ← u / (√(v/(1 − β₂ᵗ)) + eps)                    β₂ may follow a schedule: `beta2_of`

    If only `ScheduleFree` follows, torch's kernel for AdamW does this and the step of z in one pass over memory.

    State: v (``exp_avg_sq``).

    Args:
        betas: the second is β₂, in [0, 1).
        eps: added to the root, at least 0.
    """

    betas: Annotated[tuple[float, float], ("[0, 1]", "[0, 1)")]
    eps: Annotated[float, "[0, inf)"]
    averages = ("exp_avg_sq",)
    one_call: ClassVar = False
    shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the quotient."""
        u = update.value()
        v = average_squares(batch.state["exp_avg_sq"], u, beta2_of(batch))
        # u/(√v/c + eps) = c u/(√v + c eps) saves a pass over the elements
        c = beta2_correction(batch) ** 0.5
        root = v.sqrt().add_(c * batch.group["eps"])
        return Update(torch.div(u, root, out=root), c, overwritable=True)

    def fuses(self, later: Sequence[Transform]) -> bool:
        """Return whether `ScheduleFree` alone follows."""
        return len(later) == 1 and isinstance(later[0], ScheduleFree) and not later[0].prefix

    def move(self, update: Update, batch: ParamBatch, later: Sequence[Transform]) -> None:
        """Do the same as both transforms, in fewer passes over memory."""
        averaging, u, (param, z) = later[0], update.value(), (batch.param, batch.state["z"])
        assert isinstance(averaging, ScheduleFree)
        known = has_kernel(param.device, batch.group["lr"]) and not isinstance(batch.step, Tensor)
        known = known and not batch.group["cautious_weight_decay"]
        if known and same_layout(u, z) and same_layout(z, param):
            _fused_step(u, batch, averaging)
        else:
            averaging(self(update, batch), batch).subtract_from(param)


def _fused_step(u: Tensor, batch: ParamBatch, averaging: ScheduleFree) -> None:
    """Go from y to x, let the kernel move z, and go back to y.

    The decay of y = β x + (1 − β) z has two parts: the kernel knows z alone.
    """
    group, z, y = batch.group, batch.state["z"], batch.param
    lr, beta, c = learning_rate(batch), averaging.beta(group), averaging.share_of_newest(batch)
    x = y.lerp_(z, 1 - 1 / beta)
    step_by_rms(z, u, batch.state["exp_avg_sq"], batch, lr=lr, decay=group["weight_decay"] * (1 - beta))
    if group["weight_decay"]:
        Update(x, lr * (group["weight_decay"] * beta)).subtract_from(z)
    x.lerp_(z, 1 - beta * (1 - c))


class ScheduleFreeAdamW(Composable):
    """Take gradients between the iterate and its average, which replaces momentum and a schedule; divide them as Adam
    does.

    The rule is `ScaleByRms`, then `ScheduleFree`. Evaluate and save the model between `eval` and `train`. The learning
    rate should not decay.

    Use: if the length of the training is not known beforehand: its average is good at any time; with `Constant`, a
    warm-up, and lr 1 to 10 times AdamW's.

    State: 8 bytes per float32 parameter: the average v of g² (``exp_avg_sq``) and z (``z``); and two numbers per
    tensor.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: share of the average in the point of the gradients, in (0, 1], and decay of the average of g², in [0, 1).
        eps: added to the root, at least 0.
        r: see `ScheduleFree`.
        weight_lr_power: see `ScheduleFree`.
        common: see `CommonOptions`; ``weight_decay`` is that of `ScheduleFree`, at y.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682, algorithm 1. The defaults are those of
        AdamWScheduleFree of the authors' package schedulefree 1.4.1.
        Differs: each parameter counts its own steps; what `eval` takes away, `train` puts back bit for bit.

    Examples:
        >>> param = nn.Parameter(torch.ones(1))
        >>> optimizer = optim.ScheduleFreeAdamW([param], lr=0.1)
        >>> for _ in range(3):
        ...     param.grad = param.detach().clone()
        ...     optimizer.step()
        >>> optimizer.eval()  # the parameter is the average of the iterates now
        >>> f"{param.item():.3f}"
        '0.806'
        >>> optimizer.train()  # and the point for the next gradient again
        >>> f"{param.item():.3f}"
        '0.797'
    """

    has_beta2: ClassVar = True
    refused: ClassVar = {
        **Composable.refused,
        **dict.fromkeys(("corrected_weight_decay", "peak_lr"), "lr follows no schedule here"),
        **dict.fromkeys(("update_norm", "min_param_rms"), "the average of points on a sphere is none"),
    }

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        own: Any = {"betas": betas, "r": r, "weight_lr_power": weight_lr_power}
        super().__init__(params, [ScaleByRms(betas, eps)], lr=lr, ending=[FirstBetaScheduleFree], **own, **common)
