"""Limits of gradients, of updates and of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors as flatten

from optim.engine.distributed import whole_norms
from optim.engine.options import OR_NONE, WHOLE, check_range, did_you_mean
from optim.engine.param_batch import Group, ParamBatch, ParamEntry, Scalar, State, Update, at_least, state_dtype
from optim.engine.transform import Transform
from optim.transforms.factored import slice_axes, slice_rms, times_slices
from optim.transforms.momentum import corrected_gradient

EARLY_STEPS = (10, 20, 40)
"""Steps at which the threshold is estimated before a whole period has passed."""
MU_LAW, A_LAW = 127.0, 87.6
TRUST_SCALE, TRUST_LERP, TRUST_LIMIT = 1.5, 0.9, 2.0
Clipper = Callable[[Tensor], Tensor]
"""Returns the limited update of one parameter, in the same shape; may overwrite its argument."""
GLOBAL_NORM = "global_norm"


class ClipByGlobalNorm(Transform):
    """Scales updates by one factor for all parameters of the optimizer; must stand before transforms that change them.

        u ← u · min(1, global_norm_clip_threshold/‖all gradients‖₂)

    Gradients that are None are not counted. Nothing waits for the device.

    State of a group: the factor (``gradient_scale``), of the last step.

    Args:
        global_norm_clip_threshold: None, or 0, for no limit.
        name: see `Transform`.
    """

    global_norm_clip_threshold: Annotated[float | None, "[0, inf)" + OR_NONE] = 1.0
    switch = "global_norm_clip_threshold"
    foreach = shardable = True

    def new_shared_state(self, group: Group) -> State:
        """Return a factor of one."""
        return {"gradient_scale": 1.0}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Measure the gradients of all groups."""
        option, key = self.prefix + "global_norm_clip_threshold", self.prefix + "gradient_scale"
        if not any(group[option] for group, _ in groups):
            return
        norm = total_norm(gradient_norms([entry for _, entries in groups for entry in entries]))
        for group, _ in groups:
            if group[option]:
                # a tensor: `if norm > threshold` would wait for the device; a norm of zero gives inf, clamped to 1
                keep_factor(group["shared_state"], key, (group[option] / norm).clamp_(max=1.0))

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        return limited_by(batch.group["shared_state"][self.prefix + "gradient_scale"], update, batch)


def keep_factor(shared: State, key: str, factor: float | Tensor) -> None:
    """Store a factor of a group: a 0-dimensional tensor in the memory of the former one, which a step's graph reads."""
    if isinstance(factor, Tensor) and isinstance(shared[key], Tensor):
        shared[key].copy_(factor)
    else:
        shared[key] = factor


def limited_by(factor: Tensor, update: Update, batch: ParamBatch) -> Update:
    """Return the update times a 0-dimensional factor of the whole group, and note it as a limit."""
    # parameters may be on other devices than the norm
    own = batch.read(factor.to(batch.param.device, batch.param.dtype))
    batch.note_limit(own)
    return update.times(own)


def gradient_norms(entries: Sequence[ParamEntry]) -> Sequence[Tensor]:
    """Return the Euclidean norm of every gradient, all shards together, by one call if they share dtype and device."""
    # dtype: the squares of float16 gradients overflow above 256
    dtypes = [state_dtype(entry.param) for entry in entries]
    if len({(entry.grad.dtype, entry.grad.device, dtype) for entry, dtype in zip(entries, dtypes, strict=True)}) == 1:
        norms = torch._foreach_norm([entry.grad for entry in entries], 2, dtypes[0])
    else:
        pairs = zip(entries, dtypes, strict=True)
        norms = tuple(torch.linalg.vector_norm(entry.grad, dtype=dtype) for entry, dtype in pairs)
    return whole_norms(norms, entries)


def total_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all tensors together, given that of each; all norms are 0-dimensional."""
    widest = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms]))


class ClipByMedianNorm(Transform):
    """Scales the gradients of a group by one factor; the threshold follows the median norm of recent steps.

    At step k = 0, 1, … of a group; the weight w of a parameter is its statistic ``param_rms``, which another transform
    of the chain keeps, or scalar_lr_scale if it has one element:

        n_k = √(Σ (w ‖g‖)²)  over the group
        k > 0 and k mod clipping_update_period = 0:   T = clipping_scale · median of the last period's norms
        k = 10, 20, 40 within the first period:       T = 2 clipping_scale · median of n_1, …, n_k
        u ← min(1, T/n_k) u                           once there is a T; 0 where n_k is not finite

    Of M norms in ascending order, from 0, the median is number 2 ⌊M/4⌋, or the last. In the first period n_0 counts as
    zero. Each group has norms and a threshold of its own, and all parameters of a group have made as many steps.

    Kept for a group: n (``recent_norms``), T (``clipping_threshold``) and the factor of this step
    (``clipping_factor``). On a CPU a median that is not finite raises. On other devices the check would wait for the
    device: T keeps its value, and gradients that are not finite count as zeros.

    Args:
        clipping_scale: how far above the median a norm may be, above 0; None for no clipping.
        clipping_update_period: number of steps between estimates of the threshold, 1 to 100,000, whose norms are kept.
        scalar_lr_scale: weight of parameters of one element, at least 0.
        name: see `Transform`.
    """

    clipping_scale: Annotated[float | None, "(0, inf)" + OR_NONE] = 2.0
    clipping_update_period: Annotated[int, "[1, 100000]" + WHOLE] = 100
    scalar_lr_scale: Annotated[float, "[0, inf)"] = 0.1
    switch = "clipping_scale"
    foreach = shardable = True

    def new_shared_state(self, group: Group) -> State:
        """Return norms of zero, and an infinite threshold."""
        params = group["params"]
        device = params[0].device if params else None
        wide = any(param.dtype == torch.float64 for param in params)
        norms = torch.zeros(
            group["clipping_update_period"], device=device, dtype=torch.float64 if wide else torch.float32
        )
        threshold = norms.new_full((), float("inf"))
        return {"recent_norms": norms, "clipping_threshold": threshold, "clipping_factor": 1.0}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Find the factor of every group."""
        for group, entries in groups:
            own = self.unprefixed(group)
            if own["clipping_scale"] is not None and entries:
                shared = group["shared_state"]
                mine = {key.removeprefix(self.prefix): x for key, x in shared.items() if key.startswith(self.prefix)}
                keep_factor(shared, self.prefix + "clipping_factor", _median_factor(own, entries, mine))

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        factor = batch.group["shared_state"][self.prefix + "clipping_factor"]
        batch.note_limit(factor)
        if isinstance(factor, Tensor):
            # zero times infinity would not be zero
            return Update(torch.where(factor > 0, factor * update.value(), 0.0), overwritable=True)
        return update.times(factor) if factor > 0 else Update(torch.zeros_like(update.direction), overwritable=True)


def _median_factor(group: Group, entries: Sequence[ParamEntry], shared: State) -> float | Tensor:
    """Store the norm of this step, and return the factor of the gradients."""
    step, period = entries[0].state["step"], group["clipping_update_period"]
    if isinstance(step, Tensor):
        return _captured_factor(step, group, entries, shared)
    if step == 0:
        return 1.0  # as in icefall, which has no state, and so no sizes, at its first step
    norm = _weighted_norm(entries, group["scalar_lr_scale"])
    shared["recent_norms"][step % period] = norm
    threshold = shared["clipping_threshold"]
    if step % period == 0:
        _estimate(threshold, shared["recent_norms"], group["clipping_scale"])
    elif step in EARLY_STEPS and step < period:
        # norms change fast in the first steps: twice the scale
        _estimate(threshold, shared["recent_norms"][1 : step + 1], 2 * group["clipping_scale"])
    if step < min(*EARLY_STEPS, period):
        return 1.0
    # 1e-20: a norm of zero under a threshold of zero would be NaN, which stands for a norm that is not finite
    factor = (threshold / (norm + 1e-20)).clamp(max=1.0).nan_to_num(nan=0.0)
    return factor.item() if factor.device.type == "cpu" else factor


def _captured_factor(step: Tensor, group: Group, entries: Sequence[ParamEntry], shared: State) -> Tensor:
    """Do the same as `_median_factor`, with everything that depends on the step decided on the device."""
    period, scale = group["clipping_update_period"], group["clipping_scale"]
    norms, threshold = shared["recent_norms"], shared["clipping_threshold"]
    norm = _weighted_norm(entries, group["scalar_lr_scale"])
    newest = (torch.arange(period, device=norms.device) == step % period) & (step > 0)
    norms.copy_(torch.where(newest, norm, norms))
    _estimate(threshold, norms, scale, due=(step > 0) & (step % period == 0))
    for end in (end for end in EARLY_STEPS if end < period):
        _estimate(threshold, norms[1 : end + 1], 2 * scale, due=step == end)
    factor = (threshold / (norm + 1e-20)).clamp(max=1.0).nan_to_num(nan=0.0)
    return torch.where(step < min(*EARLY_STEPS, period), 1.0, factor)


def _weighted_norm(entries: Sequence[ParamEntry], scalar_weight: float) -> Tensor:
    # steps are relative to a parameter's size, so its gradient counts in proportion to that size
    norms = torch.stack(list(gradient_norms(entries)))
    one = norms.new_full((1,), scalar_weight)
    weights = [one if x.shape.numel() == 1 else x.state["param_rms"] for x in entries]
    return torch.linalg.vector_norm(norms * flatten(weights))


def _estimate(threshold: Tensor, norms: Tensor, scale: float, *, due: bool | Tensor = True) -> None:
    """Set the threshold from the median of norms if it is due, in place: it is saved with the group."""
    count = len(norms)
    # sort and not median: icefall takes index 2 ⌊M/4⌋, and NaN and infinity sort last
    estimate = scale * norms.sort().values[min(count - 1, count // 4 * 2)]
    if due is True and estimate.device.type == "cpu" and not torch.isfinite(estimate):
        raise RuntimeError(
            f"about half of the last {count} gradient norms were not finite, so that no threshold of clipping can be "
            "estimated; resume from before it began with a lower learning rate, or look for what overflows in the "
            "model or its mixed precision"
        )
    threshold.copy_(torch.where(torch.isfinite(estimate) & due, estimate, threshold))


def l2(update: Update, batch: ParamBatch) -> Update:
    """Return u/max(1, ‖u‖₂)."""
    return _scaled_down(update, batch, batch.rms_of(update) * batch.numel**0.5)


def rms_norm(update: Update, batch: ParamBatch) -> Update:
    """Return u/max(1, rms(u)), as in Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 6."""
    return _scaled_down(update, batch, batch.rms_of(update))


def _scaled_down(update: Update, batch: ParamBatch, size: Scalar) -> Update:
    # divide by at least 1 instead of multiplying by min(1, 1/size): an update of zeros stays finite
    factor = 1 / at_least(size, 1.0)
    batch.note_limit(factor)
    return update.times(factor)


def trust_region(update: Update, batch: ParamBatch) -> Update:
    """Return, element by element, 1.5 (0.1 sign(y) log(1 + |y|) + 0.9 tanh y) within ±2, where y = u/1.5.

    Reference:
        HeavyBall 1.4.1, ``utils.trust_region_clip_``; no paper.
    """
    y = update.value() / TRUST_SCALE
    bounded = y.abs().log1p_().mul_(y.sign()).lerp_(y.tanh(), TRUST_LERP)
    return Update(bounded.mul_(TRUST_SCALE).clamp_(-TRUST_LIMIT, TRUST_LIMIT), overwritable=True)


def mu_law(update: Update, batch: ParamBatch) -> Update:
    """Return, element by element, sign(u) log(1 + µ|u|)/log(1 + µ) with µ = 127; the µ-law of ITU-T G.711 has 255."""
    u = update.value()
    return Update(u.abs().mul_(MU_LAW).log1p_().div_(math.log1p(MU_LAW)).copysign_(u), overwritable=True)


def a_law(update: Update, batch: ParamBatch) -> Update:
    """Return, element by element, sign(u) f(A|u|)/(1 + log A): f(x) = x below 1, else 1 + log x; A of ITU-T G.711."""
    u = update.value()
    x = u.abs().mul_(A_LAW)
    return Update(torch.where(x < 1, x, 1 + x.log()).div_(1 + math.log(A_LAW)).copysign_(u), overwritable=True)


CLIPPERS: dict[str, Callable[[Update, ParamBatch], Update]] = {
    clipper.__name__: clipper for clipper in (l2, rms_norm, trust_region, mu_law, a_law)
}
HEAVYBALL_NAMES = {
    "l2_clip_": "l2",
    "rmsnorm_clip_": "rms_norm",
    "trust_region_clip_": "trust_region",
    "mu_law_compress": "mu_law",
    "a_law_compress": "a_law",
}
NAMES = (*CLIPPERS, GLOBAL_NORM, "identity")


class Clipping(Transform):
    """Limits what arrives by one of `CLIPPERS`, or by a function of one parameter's tensor.

    ``identity`` and None change nothing. ``global_norm``, for gradients alone, is

        g ← g/max(1, ‖gradients of all parameters of the optimizer‖₂)                  each after MARS, where it is on

    Groups and checkpoints hold names only. A function's is its module and qualified name; it is not saved, so that an
    optimizer which loads the state must have been given it too.

    State of a group, for gradients: the divisor's inverse (``clip_factor``), of the last step.

    Args:
        how: a name, HeavyBall's name of such a function, a function, or None.
        option: name of the option in the groups: ``gradient_clipping`` or ``update_clipping``.
        name: see `Transform`.
    """

    foreach = shardable = True

    def __init__(self, how: str | Clipper | None, option: str, *, name: str = "") -> None:
        self.option, self.functions = option, dict[str, Clipper]()
        super().__init__(name=name, **{option: self._name_of(how)})

    def _name_of(self, how: str | Clipper | None) -> str | None:
        """Return what groups hold; remember a function under its name."""
        if not callable(how):
            return HEAVYBALL_NAMES.get(how, how) if isinstance(how, str) else how
        # an object with __call__ has the name of its class: its repr may hold an address, which no other process has
        named = how if hasattr(how, "__qualname__") else type(how)
        label = f"{named.__module__}.{named.__qualname__}"
        if self.functions.setdefault(label, how) is not how:
            raise ValueError(f"{self.option} was given two functions called {label}; give one of them another name")
        self.foreach = self.shardable = False  # it gets the tensor of one parameter
        return label

    def check(self, group: Group) -> None:
        """Turn a function into its name, and refuse unknown names."""
        group[self.option] = how = self._name_of(group[self.option])
        if how not in (*NAMES, *self.functions, None):
            raise ValueError(
                f"{self.option} must be one of {', '.join(NAMES)}, a function of a tensor, or None, given {how!r}"
                f"{did_you_mean(str(how), NAMES)}; a state that was saved with a function needs it here too"
            )
        if how == GLOBAL_NORM and self.option != "gradient_clipping":
            raise ValueError(
                f"{self.option}={GLOBAL_NORM!r} would need all updates before the first parameter moves; use "
                f"gradient_clipping={GLOBAL_NORM!r}, or limit each update by 'l2' or 'rms_norm'"
            )

    def new_shared_state(self, group: Group) -> State:
        """Return a factor of one."""
        # whatever the option is: a loaded state may bring another one
        return {"clip_factor": 1.0} if self.option == "gradient_clipping" else {}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Measure all gradients, if a group wants their common norm."""
        wanting = [group for group, _ in groups if group[self.prefix + self.option] == GLOBAL_NORM]
        norms = [norm for group, entries in groups for norm in _norms_after_mars(group, entries)] if wanting else []
        for group in wanting if norms else ():
            # a tensor: `if norm > 1` would wait for the device
            keep_factor(group["shared_state"], self.prefix + "clip_factor", 1 / total_norm(norms).clamp(min=1.0))

    def needs_all_gradients(self, group: Group) -> bool:
        """Return whether the common norm is limited; the others look at one parameter."""
        return bool(group[self.option] == GLOBAL_NORM)

    def is_noop(self, group: Group) -> bool:
        """Return whether everything passes unchanged."""
        return group[self.option] in (None, "identity")

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        how = batch.group[self.option]
        if how in CLIPPERS:
            return CLIPPERS[how](update, batch)
        if how == GLOBAL_NORM:
            return limited_by(batch.group["shared_state"][self.prefix + "clip_factor"], update, batch)
        # a copy: the function may overwrite it, and it may be the gradient itself
        given = update.writable() if update.overwritable else update.value().clone()
        limited = [self.functions[how](x) for x in (given.unbind() if batch.stacked else (given,))]
        if any(x.shape != batch.shape for x in limited):
            raise ValueError(f"{self.option}: {how} must keep the shape {tuple(batch.shape)} of its argument")
        return Update(torch.stack(limited) if batch.stacked else limited[0], overwritable=True)


def _norms_after_mars(group: Group, entries: Sequence[ParamEntry]) -> Sequence[Tensor]:
    """Return the norm of every gradient, after MARS."""
    if not group.get("mars"):
        return gradient_norms(entries)
    norms = []
    for entry in entries:
        # the sign that `maximize` turns is kept in the previous gradient
        previous = -entry.state["previous_grad"] if group["maximize"] else entry.state["previous_grad"]
        wide = entry.grad.to(state_dtype(entry.param))
        norms.append(torch.linalg.vector_norm(corrected_gradient(wide, previous, group, entry.state["step"] + 1)))
    return whole_norms(norms, entries)


class ClipByRms(Transform):
    """Scales an update down to an RMS: one factor per parameter, or per slice if the parameter has a `FactorPlan`.

        u ← u / max(1, rms(u)/clip_threshold)

    Args:
        clip_threshold: above 0; None for no limit.
        option: name of the threshold in the groups.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 6.
    """

    foreach = True

    def __init__(self, clip_threshold: float | None = 1.0, *, option: str = "clip_threshold", name: str = "") -> None:
        super().__init__(name=name, **{option: clip_threshold})
        self.option = option

    def check(self, group: Group) -> None:
        """Refuse a threshold that is not positive."""
        check_range(self.option, group[self.option], "(0, inf)" + OR_NONE)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        threshold = batch.group[self.option]
        if threshold is None:
            return update
        # divide by at least 1 instead of multiplying by min(1, threshold/rms): an update of zeros stays finite
        factor = 1 / at_least(slice_rms(update, batch) / threshold, 1.0)
        # a parameter counts as limited if any of its slices is
        sliced = batch.limited is not None and slice_axes(batch) is not None
        batch.note_limit(batch.minimum(factor) if sliced else factor)  # type: ignore[arg-type]
        return times_slices(update, factor, batch)


class Clamp(Transform):
    """Clamps parameters to ±limit after the step.

    Args:
        limit: largest magnitude of an element.
        option: name of the limit in the groups.
        interval: what the limit may be, as in `optim.engine.options.check_range`.
        every: clamp at the first step and at every n-th after it; in between the limit may be exceeded.
        scalars_only: leave parameters of more than one element alone.
        name: see `Transform`.
    """

    acts_after_step: ClassVar = True
    foreach = shardable = True

    def __init__(
        self,
        limit: float,
        option: str = "param_max",
        interval: str = "(0, inf)",
        *,
        every: int = 1,
        scalars_only: bool = False,
        name: str = "",
    ) -> None:
        super().__init__(name=name, **{option: limit})
        self.option, self.interval, self.every, self.scalars_only = option, interval, every, scalars_only
        self.asks_single = scalars_only

    def check(self, group: Group) -> None:
        """Refuse a limit outside its interval."""
        # not in `allowed`, which belongs to the class: optimizers name the option as their references do
        check_range(self.option, group[self.option], self.interval)

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update unchanged."""
        return update

    def after_step(self, batch: ParamBatch) -> None:
        """Clamp the parameters if it is due."""
        # after the step: the parameter that the next forward pass reads is the one that must be bounded
        if self.scalars_only and not batch.single_element:
            return
        limit, due = batch.group[self.option], (batch.step - 1) % self.every == 0
        if isinstance(due, Tensor):
            limit = torch.where(due, limit, torch.inf)
        elif not due:
            return
        batch.param.clamp_(-limit, limit)
