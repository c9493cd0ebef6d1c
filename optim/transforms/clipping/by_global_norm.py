"""Gradients scaled down together where their common norm is above a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from optim.engine.options import OR_NONE
from optim.engine.param_batch import Group, ParamBatch, ParamEntry, State, Update, state_dtype
from optim.engine.transform import Transform


class ClipByGlobalNorm(Transform):
    """Scales updates by one factor for all parameters of the optimizer; must stand before transforms that change them.

        u ← u · min(1, global_norm_clip_threshold/‖all gradients‖₂)

    Gradients that are None are not counted. Nothing waits for the device.

    State of a group: the factor (``gradient_scale``), of the last step.

    Args:
        global_norm_clip_threshold: None, or 0, for no limit.
        name: see `Transform`.
    """

    allowed: ClassVar = {"global_norm_clip_threshold": "[0, inf)" + OR_NONE}
    foreach = True

    def __init__(self, global_norm_clip_threshold: float | None = 1.0, *, name: str = "") -> None:
        super().__init__(name=name, global_norm_clip_threshold=global_norm_clip_threshold)

    def new_shared_state(self, group: Group) -> State:
        """Return a factor of one."""
        return {"gradient_scale": 1.0}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Measure the gradients of all groups."""
        option, key = self.prefix + "global_norm_clip_threshold", self.prefix + "gradient_scale"
        entries = [entry for _, entries in groups for entry in entries]
        if not entries or not any(group[option] for group, _ in groups):
            return
        norm = total_norm(gradient_norms(entries))
        for group, _ in groups:
            if group[option]:
                # a tensor: `if norm > threshold` would wait for the device; a norm of zero gives inf, clamped to 1
                keep_factor(group["shared_state"], key, (group[option] / norm).clamp_(max=1.0))

    def is_noop(self, group: Group) -> bool:
        """Return whether there is no limit."""
        return not group["global_norm_clip_threshold"]

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
    """Return the Euclidean norm of every gradient, by one call if they are alike."""
    # dtype: the squares of float16 gradients overflow above 256
    dtypes = [state_dtype(entry.param) for entry in entries]
    if len({(entry.grad.dtype, entry.grad.device, dtype) for entry, dtype in zip(entries, dtypes, strict=True)}) == 1:
        return torch._foreach_norm([entry.grad for entry in entries], 2, dtypes[0])
    return [torch.linalg.vector_norm(entry.grad, dtype=dtype) for entry, dtype in zip(entries, dtypes, strict=True)]


def total_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all tensors together, given that of each; all norms are 0-dimensional."""
    widest = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms]))
