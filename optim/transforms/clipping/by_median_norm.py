"""Gradients scaled down where their norm is far above the median of recent steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.options import OR_NONE, WHOLE
from optim.engine.param_batch import Group, ParamBatch, ParamEntry, State, Update, flattened
from optim.engine.transform import Transform
from optim.transforms.clipping.by_global_norm import gradient_norms, keep_factor

EARLY_STEPS = (10, 20, 40)
"""Steps at which the threshold is estimated before a whole period has passed."""


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

    allowed: ClassVar = {
        "clipping_scale": "(0, inf)" + OR_NONE,
        "clipping_update_period": "[1, 100000]" + WHOLE,
        "scalar_lr_scale": "[0, inf)",
    }
    foreach = True

    def __init__(
        self,
        clipping_scale: float | None = 2.0,
        clipping_update_period: int = 100,
        scalar_lr_scale: float = 0.1,
        *,
        name: str = "",
    ) -> None:
        super().__init__(
            name=name,
            clipping_scale=clipping_scale,
            clipping_update_period=clipping_update_period,
            scalar_lr_scale=scalar_lr_scale,
        )

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
                keep_factor(shared, self.prefix + "clipping_factor", _factor(own, entries, mine))

    def is_noop(self, group: Group) -> bool:
        """Return whether there is no clipping."""
        return group["clipping_scale"] is None

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        factor = batch.group["shared_state"][self.prefix + "clipping_factor"]
        batch.note_limit(factor)
        if isinstance(factor, Tensor):
            # zero times infinity would not be zero
            return Update(torch.where(factor > 0, factor * update.value(), 0.0), overwritable=True)
        return update.times(factor) if factor > 0 else Update(torch.zeros_like(update.direction), overwritable=True)


def _factor(group: Group, entries: Sequence[ParamEntry], shared: State) -> float | Tensor:
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
    """Do the same as `_factor`, with everything that depends on the step decided on the device."""
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
    weights = [one if x.param.numel() == 1 else x.state["param_rms"] for x in entries]
    return torch.linalg.vector_norm(norms * flattened(weights))


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
