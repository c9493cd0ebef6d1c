"""Adafactor as Hugging Face and fairseq know it: factored second moments, steps relative to the parameter's size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from optim.batch import Group
from optim.chain import Chain
from optim.options import OR_NONE, check_range
from optim.transforms.clip_by_rms import ClipByRms
from optim.transforms.factored import FactoredMoments
from optim.transforms.momentum import Momentum
from optim.transforms.relative_step import RelativeStep, base_step


class Adafactor(Chain):
    """Adam with a second moment of one number per row and column, clipped updates and, by default, a step of its own.

    For a parameter p with gradient g at its own step t = 1, 2, …, with rms(x) = √(mean of x²):

        a = lr,  or with relative_step  min(10⁻², 1/√t)  (10⁻⁶ t in place of 10⁻² with warmup_init)
        a ← max(eps₂, rms(p)) · a                                       with scale_parameter
        b = 1 − t^decay_rate                                            (0 at t = 1)
        s = g² + eps₁
        two axes or more:  r ← b r + (1 − b) mean of s over columns,   c ← b c + (1 − b) mean of s over rows
                           u = g ⊙ (r / mean r)^-½ ⊙ c^-½               (last two axes; others are a batch)
        else:              v ← b v + (1 − b) s,   u = g v^-½
        u ← a u / max(1, rms(u)/clip_threshold)
        m ← beta1 m + (1 − beta1) u,   u = m                            with beta1; no bias correction
        p ← p − weight_decay · a · p − u

    Means and rms are over the whole tensor. For convolutions (out, in, k) the last two axes are factored.

    State: r and c (``row``, ``col``), or v (``exp_avg_sq``); m (``exp_avg``) with beta1.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate; None with ``relative_step``.
        eps: added to g², and floor of rms(p).
        clip_threshold: rms of the update above which it is scaled down.
        decay_rate: exponent of the averages' weight, at most 0.
        beta1: decay of the momentum, in [0, 1); None for none.
        weight_decay: times a, the fraction taken off per step.
        scale_parameter: make the step relative to rms(p).
        relative_step: choose the step by t instead of lr; torch's schedules cannot set it then.
        warmup_init: begin the relative step at 10⁻⁶.
        maximize: ascend instead of descend.
        skip_nonfinite: see `Chain`.

    Raises:
        ValueError: an option is unknown or out of range, lr and relative_step do not go together, or a parameter is not
            real floating point.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithms 4 to 6; options and details of
        transformers.optimization.Adafactor.
        Differs: impossible combinations are refused at construction; nothing waits for the device; the state keeps its
        type.
    """

    lr_allowed = "[0, inf)" + OR_NONE

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
        *,
        maximize: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        transforms = [
            FactoredMoments(decay_rate, eps),
            ClipByRms(clip_threshold),
            RelativeStep(eps, weight_decay, scale_parameter, relative_step, warmup_init),
            Momentum(beta1),
        ]
        super().__init__(params, transforms, lr=lr, maximize=maximize, skip_nonfinite=skip_nonfinite)


class AdafactorSchedule(LRScheduler):
    """Reports the steps that an `Adafactor` with ``relative_step`` chooses, where a training wants a schedule.

    It sets nothing. ``get_last_lr`` gives, for each group, the step of its first parameter that was updated, or
    ``initial_lr`` before that.

    Args:
        optimizer: an Adafactor without lr.
        initial_lr: what is reported before the first update.

    Raises:
        ValueError: the optimizer is not such an Adafactor.

    Reference:
        transformers.optimization.AdafactorSchedule.
        Differs: does not need a gradient to be there when it is asked.
    """

    def __init__(self, optimizer: Optimizer, initial_lr: float = 0.0) -> None:
        if not isinstance(optimizer, Adafactor):
            raise ValueError(f"AdafactorSchedule reports the steps of Adafactor, given {type(optimizer).__name__}")
        check_range("initial_lr", initial_lr, "[0, inf)")
        self.optimizer, self.reported = optimizer, initial_lr
        self.base_lrs, self.last_epoch = [initial_lr] * len(optimizer.param_groups), 0

    def step(self, epoch: int | None = None) -> None:
        """Count one update; the optimizer sets its step itself."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch

    def get_lr(self) -> list[float | Tensor]:
        """Return the latest step of each group's first updated parameter."""
        return [self._group_step(group) for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the same as `get_lr`."""
        return self.get_lr()

    def _group_step(self, group: Group) -> float:
        for param in group["params"]:
            if state := self.optimizer.state.get(param):
                scale = (
                    max(group["eps"][1], float(torch.linalg.vector_norm(param.detach())) / param.numel() ** 0.5)
                    if group["scale_parameter"]
                    else 1.0
                )
                return float(base_step(group, state["step"])) * scale
        return self.reported

    def state_dict(self) -> dict[str, Any]:
        """Return the count of updates; the rest is the optimizer's state."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the count."""
        self.last_epoch = state_dict["last_epoch"]
