"""Gradients scaled down together where their common norm is above a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from optim.batch import Batch, Group, Member, State, Update, state_dtype
from optim.options import OR_NONE
from optim.transform import Transform


class ClipByGlobalNorm(Transform):
    """Scales updates by one number for all parameters of the optimizer; stands before whatever changes a gradient.

        u ← u · min(1, global_norm_clip_threshold/‖all gradients‖₂)

    Gradients that are None are not counted. Nothing waits for the device.

    State of a group: the factor (``gradient_scale``), of the last step.

    Args:
        global_norm_clip_threshold: None, or 0, for no limit.
        name: see `Transform`.
    """

    allowed: ClassVar = {"global_norm_clip_threshold": "[0, inf)" + OR_NONE}

    def __init__(self, global_norm_clip_threshold: float | None = 1.0, *, name: str = "") -> None:
        super().__init__(name=name, global_norm_clip_threshold=global_norm_clip_threshold)

    def new_shared_state(self, group: Group) -> State:
        """Return a factor of one."""
        return {"gradient_scale": 1.0}

    def before_step(self, groups: Sequence[tuple[Group, list[Member]]]) -> None:
        """Measure the gradients of all groups."""
        option, key = self.prefix + "global_norm_clip_threshold", self.prefix + "gradient_scale"
        members = [member for _, members in groups for member in members]
        if not members or not any(group[option] for group, _ in groups):
            return
        norm = _norm_of_all(members)
        for group, _ in groups:
            if group[option]:
                group["shared_state"][key] = (group[option] / norm).clamp_(max=1.0)

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Return the update, limited."""
        if not batch.group["global_norm_clip_threshold"]:
            return update
        factor = batch.read(batch.group["shared_state"][self.prefix + "gradient_scale"].to(batch.param))
        batch.note_limit(factor)
        return update.times(factor)


def _norm_of_all(members: Sequence[Member]) -> Tensor:
    norms = [torch.linalg.vector_norm(member.grad, dtype=state_dtype(member.param)) for member in members]
    widest = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms]))
