"""MaxFactor: factored second moments, normalized by their maximum, and one step length per row."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import SWITCH
from optim.engine.param_batch import (
    ForeachBatch,
    Group,
    ParamBatch,
    Scalar,
    State,
    Update,
    at_least,
    at_most,
    zero_per_axes,
    zeros,
)
from optim.engine.transform import Transform
from optim.transforms.learning_rate import CautiousDecay, DecoupledDecay

EPS = ("(0, inf)", "[0, inf)")


class MaxFactor(Chain):
    """Factored second moments over their maximum; every row of a matrix moves by its largest normalized gradient,
    against its sign.

    In order: `MaxFactoredRows` finds the direction, `BoundedRelativeStep` its length, and `DecoupledDecay` shrinks the
    parameter.

    Use: if state must be tiny; try ``max_norm`` off too.

    State: 0.10 bytes per float32 parameter: R (``row``) and C (``col``) of a matrix, v (``exp_avg_sq``) of anything
    else.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: upper bound of the relative step ρ, and the factor of weight decay; a tensor of one element is allowed.
        beta2_decay: exponent of the weight of the newest sample, at most 0.
        eps: floor of statistics, and floor of rms(p).
        d: rms of the normalized update above which it is scaled down.
        weight_decay: times lr, the fraction taken off per step.
        gamma: decay of v.
        max_norm: divide by the row maximum, and move a row as one.
        min_lr: lower bound of ρ.
        scalar_boost: factor of the step of single elements.
        cautious_weight_decay: see `shrink`.
        reference_bugs: treat parameters of less than two axes as the reference does: square the gradient before it
            becomes the direction, so that they always decrease, and store the normalized update in place of v. The
            reference squares the gradient, and normalizes its state, in place.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/sine2pi/Maxfactor, README; no paper. Also the defaults.
        Differs: steps every group (the reference only the first); keeps no second moment that it does not use; state in
        float32 for half precision, else in the parameter's dtype; never waits for the device.

    Examples:
        >>> weight = nn.Parameter(torch.ones(2, 3))
        >>> optimizer = optim.MaxFactor([weight], weight_decay=0.0)
        >>> weight.grad = torch.tensor([[1.0, -2.0, 3.0], [0.1, 0.2, -0.3]])
        >>> optimizer.step()
        >>> weight.data - 1  # in a row only the signs differ
        tensor([[-0.0100,  0.0100, -0.0100],
                [-0.0100, -0.0100,  0.0100]])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        beta2_decay: float = -0.8,
        eps: tuple[float, float] = (1e-10, 1e-4),
        d: float = 1.0,
        weight_decay: float = 0.01,
        gamma: float = 0.99,
        max_norm: bool = True,
        min_lr: float = 1e-7,
        scalar_boost: float = 2.0,
        *,
        cautious_weight_decay: bool = False,
        reference_bugs: bool = False,
        **common: Unpack[ChainOptions],
    ) -> None:
        own = locals()
        # decay last: the step is relative to the parameter before it
        transforms = [kind.of(own) for kind in (MaxFactoredRows, BoundedRelativeStep, DecoupledDecay, CautiousDecay)]
        super().__init__(params, transforms, lr=lr, **common)


class MaxFactoredRows(Transform):
    """The direction of MaxFactor, whose largest element is 1.

    At the parameter's own step t = 1, 2, … with N elements; w = clamp(t^beta2_decay, 0.001, 0.999) is the weight of the
    newest sample, and (m, n) the size of a matrix:

        matrices:  R ← R + w (Σ_columns u²/(n + eps₁) − R),   C ← C + w (Σ_rows u²/(m + eps₁) − C),   V = R C / max R
        others:    v ← γ v + (1 − γ) u²,   V = v
        N = 1:     u ← u/(√V + eps₁)
        else:      u ← u/√max(V, eps₁²),   u ← u/max(max|u|, eps₁),   D = max(1, rms(u)/d)
                   matrices:  u ← sign(u) ⊙ max over the row of |u| / D
                   others:    u ← u/D

    A matrix is anything with two axes or more; the last two are rows and columns, others are a batch. If d ≥ 1, D is
    always 1, because u is at most 1. ``max_norm=False`` leaves out max R and the maximum over the row.
    """

    beta2_decay: Annotated[float, "(-inf, 0]"]
    gamma: Annotated[float, "[0, 1)"]
    eps: Annotated[tuple[float, float], EPS]
    d: Annotated[float, "(0, inf)"]
    max_norm: Annotated[bool, SWITCH]
    reference_bugs: Annotated[bool, SWITCH]
    foreach = asks_single = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return statistics of zero: R (…, m, 1) and C (…, 1, n) of matrices, v in the shape of other parameters."""
        if param.dim() < 2:
            return {"exp_avg_sq": zeros(param, group)}
        leading = tuple(range(-param.dim(), -2))
        return {"row": zero_per_axes(param, (*leading, -2)), "col": zero_per_axes(param, (*leading, -1))}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update in units of its largest element."""
        if "row" in batch.state:
            return _matrix(update.value(), batch)
        u, group, eps, average = update.value(), batch.group, batch.group["eps"][0], batch.state["exp_avg_sq"]
        square = u * u
        average.mul_(group["gamma"]).add_(square, alpha=1 - group["gamma"])
        numerator = square if group["reference_bugs"] else u
        if batch.single_element:
            return Update(numerator / average.sqrt().add_(eps), overwritable=True)
        # clamp and not clamp_: the average is kept
        direction = numerator / average.clamp(min=eps * eps).sqrt_()
        factor = 1 / at_least(batch.maximum(direction.abs()), eps)
        if group["reference_bugs"]:
            average.copy_(direction * factor)
        return _clipped(Update(direction, factor, overwritable=True), batch)


def _matrix(grad: Tensor, batch: ParamBatch) -> Update:
    group, eps = batch.group, batch.group["eps"][0]
    square = grad * grad
    weight = at_most(at_least(batch.step ** group["beta2_decay"], 0.001), 0.999)
    row = square.sum(-1, keepdim=True).mul_(batch.of_shape(lambda shape: 1 / (shape[-1] + eps)))
    col = square.sum(-2, keepdim=True).mul_(batch.of_shape(lambda shape: 1 / (shape[-2] + eps)))
    row, col = batch.state["row"].lerp_(row, weight), batch.state["col"].lerp_(col, weight)
    if group["max_norm"]:
        row = row / row.amax(-2, keepdim=True).clamp_(min=eps)
    if batch.single_element:
        return Update(grad / (row * col).sqrt_().add_(eps), overwritable=True)
    if group["max_norm"] and group["d"] >= 1 and _above_floor(row, col, eps, batch):
        # max over the row of u²/(R C), and one root per row instead of one per element
        rows = square.div_(col).amax(-1, keepdim=True).div_(row).sqrt_()
        return Update(torch.sign(grad, out=square), _over_maximum(rows, batch), overwritable=True, row_scale=rows)
    # 1/√max(R C, eps²) = min(R^-½ C^-½, 1/eps); the squares are not needed again: their memory takes it
    u = torch.mul(row.rsqrt(), col.rsqrt(), out=square).clamp_(max=1 / eps).mul_(grad)
    # amax and amin read u without a copy of its magnitudes
    rows = torch.maximum(u.amax(-1, keepdim=True), u.amin(-1, keepdim=True).neg_())
    clipped = _clipped(Update(u, _over_maximum(rows, batch), overwritable=True), batch)
    if not group["max_norm"]:
        return clipped
    # D has been measured on u; only now may the signs overwrite it
    return Update(u.sign_(), clipped.scale, overwritable=True, row_scale=rows)


def _above_floor(row: Tensor, col: Tensor, eps: float, batch: ParamBatch) -> bool:
    """Return whether R C is nowhere below eps², as far as that can be read without waiting.

    Then max|u| over a row needs no u, which saves four of seven passes over the elements.
    """
    alone = not (batch.stacked or isinstance(batch, ForeachBatch))
    return alone and row.device.type == "cpu" and row.amin().item() * col.amin().item() >= eps * eps


def _over_maximum(rows: Tensor, batch: ParamBatch) -> Scalar:
    return 1 / at_least(batch.maximum(rows), batch.group["eps"][0])


def _clipped(update: Update, batch: ParamBatch) -> Update:
    """Divide by D."""
    d: float = batch.group["d"]
    if d >= 1:
        return update  # saves the pass over the elements that rms needs
    factor = 1 / at_least(batch.rms_of(update) / d, 1.0)
    batch.note_limit(factor)
    return update.times(factor)


class BoundedRelativeStep(Transform):
    """Multiplies by a step that is relative to the size of the parameter and falls with the step count.

    ρ = max(min_lr, min(lr, 1/√t)),   α = max(eps₂, rms(p)) ρ
    u ← α u,   or α · scalar_boost · u  of a single element
    """

    foreach = asks_single = True
    eps: Annotated[tuple[float, float], EPS]
    min_lr: Annotated[float, "[0, inf)"]
    scalar_boost: Annotated[float, "(0, inf)"]

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update times the step."""
        group = batch.group
        bounded = at_least(at_most(group["lr"], batch.step**-0.5), group["min_lr"])
        # not batch.rms: the reference adds 1e-12 to √N
        alpha = at_least(batch.norm(batch.param) / (batch.numel**0.5 + 1e-12), group["eps"][1]) * bounded
        return update.times(alpha * group["scalar_boost"] if batch.single_element else alpha)
