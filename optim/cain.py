"""Cain: Adam whose steps are relative to the size of each row and column, and which learns a tensor's size too."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import SWITCH
from optim.engine.param_batch import Group, ParamBatch, State, Update, choose, state_dtype, zero_per_axes
from optim.engine.transform import Transform
from optim.transforms.clipping import Clamp

BETAS = ("[0, 1)", "[0, 1)")
REFRESH_EVERY = 1000  # steps after which the sizes are estimated again
CLAMP_EVERY = 10  # steps
REFERENCE_SCALE_SPEED = 0.05  # the reference uses it whatever scale_speed it is given


class Cain(Chain):
    """Adam in units of the size of each row and column; a tensor's size is learned separately.

    In order, at the parameter's own step k = 0, 1, … with N elements: `FadingRms` divides the gradient by its averaged
    size, `AxisSizes` multiplies it by the size of the parameter's rows and columns, `TensorScale` adds what changes the
    size of the whole tensor, `ChangeMomentum` averages lr times that, and `Clamp` bounds p every tenth step.

    Everything is multiplicative in p: tensors that start at zero need hundreds of steps to leave it.

    Use: if scales differ much within a model; biases must not start at zero.

    State: 8.04 bytes per float32 parameter: δ (``delta``), v (``exp_avg_sq``), z (``scale_exp_avg_sq``), and P as its
    factors (``size_<axis>``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate relative to the parameter's size, at least 0; a tensor of one element is allowed.
        betas: decay of the momentum and of the averages of squares, each in [0, 1).
        eps: added to the roots, at least 0.
        scale_speed: how fast the size of a tensor is learned, relative to its direction, in (0, 1).
        rms_eps: floor of the estimated sizes, in (0, 0.1).
        param_max: clamp of the parameter, in (0.1, 1e4]; between two clamps it may be exceeded.
        reference_bugs: ignore ``scale_speed`` and use 0.05, as the reference does.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/k2-fsa/icefall/blob/41368f6b6/egs/librispeech/ASR/pruned_transducer_stateless7/optim.py, class Cain;
        no paper. Also the defaults.
        Differs: ``scale_speed`` is obeyed; P is kept as its factors, not as a tensor.

    Examples:
        >>> large, small = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.full((4, 4), 0.01))
        >>> optimizer = optim.Cain([large, small], lr=0.03)
        >>> for _ in range(20):
        ...     large.grad, small.grad = torch.ones(4, 4), torch.ones(4, 4)
        ...     optimizer.step()
        >>> f"{large[0, 0].item():.4f} {small[0, 0].item():.6f}"  # both shrink by the same share
        '0.8729 0.008729'
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        scale_speed: float = 0.05,
        rms_eps: float = 1e-5,
        param_max: float = 20.0,
        *,
        reference_bugs: bool = False,
        **common: Unpack[ChainOptions],
    ) -> None:
        own = locals()
        rule = [kind.of(own) for kind in (FadingRms, AxisSizes, TensorScale, ChangeMomentum)]
        transforms = [*rule, Clamp(param_max, "param_max", "(0.1, 1e4]", every=CLAMP_EVERY)]
        super().__init__(params, transforms, lr=lr, **common)


class FadingRms(Transform):
    """Divides by the root of the averaged square, which starts at zero; instead of a correction the factor fades in.

    v ← β₂ v + (1 − β₂) u²
    u ← (1 − β₂ᵏ) · u/(√v + eps)          with √(1 − β₂ᵏ) if N = 1
    """

    betas: Annotated[tuple[float, float], BETAS]
    eps: Annotated[float, "[0, inf)"]
    averages = ("exp_avg_sq",)
    foreach = asks_single = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update over the root of its averaged square."""
        u, beta2 = update.value(), batch.group["betas"][1]
        v = batch.state["exp_avg_sq"].mul_(beta2).addcmul_(u, u, value=1 - beta2)
        # k counts from 0: the first step is multiplied by zero, as in the reference
        faded = 1 - beta2 ** (batch.step - 1)
        scale = faded**0.5 if batch.single_element else faded
        root = v.sqrt().add_(batch.group["eps"])
        # u may be the gradient, so the quotient overwrites the root
        return Update(torch.div(u, root, out=root), scale, overwritable=True)


class AxisSizes(Transform):
    """Multiplies each element by its estimated size P, a product of one factor per axis; single elements pass.

        u ← u ⊙ P

    If k mod 1000 = 0, P starts from 1 and every axis is fitted in order; else only axis k mod ndim is. With
    q = max(p², rms_eps²)/P², the factor of the axis is multiplied by √(mean of q over all other axes), or by
    √(mean of q) if N ≤ 2 · size of the axis.
    """

    rms_eps: Annotated[float, "(0, 0.1)"]
    foreach = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return sizes of one, (1, …, n, …, 1) for each axis of size n; none for a single element."""
        if param.numel() <= 1:
            return {}
        shapes = [[size if i == axis else 1 for i in range(param.dim())] for axis, size in enumerate(param.shape)]
        return {f"size_{i}": param.new_ones(shape, dtype=state_dtype(param)) for i, shape in enumerate(shapes)}

    def kind(self, shape: torch.Size) -> tuple[bool, ...]:
        """Return which axes are fitted to all elements."""
        # few elements per index: the mean over all of them is the safer estimate
        return tuple(shape.numel() <= 2 * size for size in shape)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Fit the sizes that are due, and return the update in units of them."""
        sizes = [batch.state[key] for key in batch.state if key.startswith("size_")]
        if not sizes:
            return update
        k = batch.step - 1
        refreshes = k % REFRESH_EVERY == 0
        for size in sizes if refreshes is not False else ():
            # each fit depends on the former ones: from 1 again, rounding and old sizes do not pile up
            size.copy_(choose(refreshes, 1.0, size)) if isinstance(refreshes, Tensor) else size.fill_(1)
        for axis, size in enumerate(sizes):
            due = (k % len(sizes) == axis) | refreshes
            if due is not False:
                size.copy_(choose(due, _fitted(sizes, axis, self.kind(batch.shape)[axis], batch), size))
        direction = update.direction if update.overwritable else update.direction.clone()
        for size in sizes:
            direction.mul_(size)
        return Update(direction, update.scale, overwritable=True)


def _fitted(sizes: list[Tensor], axis: int, pooled: bool, batch: ParamBatch) -> Tensor:
    """Return the size that an axis is to have."""
    # allocated for each axis: memory that is overwritten costs less than memory that is kept
    floor = batch.group["rms_eps"]
    square = (batch.param * batch.param).clamp_(min=floor * floor)
    for other, size in enumerate(sizes):
        if pooled or other != axis:
            square.mul_((size * size).reciprocal_())
    if pooled:
        return sizes[axis] * batch.mean(square) ** 0.5
    others = tuple(i - len(sizes) for i in range(len(sizes)) if i != axis)
    # the axis' own factor cancels: it divides q, and is multiplied
    return square.mean(others, keepdim=True).sqrt_()


class TensorScale(Transform):
    """Adds an update along the parameter itself, by Adam's rule: the derivative over the root of its averaged square.

    If N > 1:

        D = ⟨p, g⟩,   z ← β₂ z + (1 − β₂) D²
        u ← u + scale_speed · √(1 − β₂ᵏ⁺¹) · D/(√z + eps) · p
    """

    betas: Annotated[tuple[float, float], BETAS]
    eps: Annotated[float, "[0, inf)"]
    scale_speed: Annotated[float, "(0, 1)"]
    reference_bugs: Annotated[bool, SWITCH]
    foreach = asks_single = True

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return an average of zero, (1, …); none for a single element."""
        return {"scale_exp_avg_sq": zero_per_axes(param, ())} if param.numel() > 1 else {}

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update with what changes the tensor's size."""
        if batch.single_element:
            return update
        # of the gradient, not of the update that arrives: D is a derivative
        beta2, derivative = batch.group["betas"][1], batch.dot(batch.param, batch.grad)
        average = batch.state["scale_exp_avg_sq"].mul_(beta2).add_((1 - beta2) * derivative * derivative)
        speed = REFERENCE_SCALE_SPEED if batch.group["reference_bugs"] else batch.group["scale_speed"]
        change = derivative / (batch.read(average.sqrt()) + batch.group["eps"])
        change = change * (speed * (1 - beta2**batch.step) ** 0.5)
        u = update.writable()
        along = u.addcmul_(batch.param, change) if isinstance(change, Tensor) else u.add_(batch.param, alpha=change)
        return Update(along, overwritable=True)


class ChangeMomentum(Transform):
    """Averages lr times the update, so that a changed lr acts with the same delay as a changed gradient.

    δ ← β₁ δ + (1 − β₁) lr u,   u ← δ
    """

    betas: Annotated[tuple[float, float], BETAS]
    averages = ("delta",)
    foreach = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the averaged change."""
        beta1 = batch.group["betas"][0]
        delta = batch.state["delta"].mul_(beta1)
        # not overwritable: the direction that leaves is the statistic itself
        return Update(update.times((beta1 - 1) * batch.group["lr"]).subtract_from(delta))
