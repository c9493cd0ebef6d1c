"""Adafactor as Hugging Face and fairseq know it: factored second moments, steps relative to the parameter's size."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from optim.options import SWITCH, check_range
from optim.step_loop import Group, State, StepLoop, state_dtype, zeros


class Adafactor(StepLoop):
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

    Raises:
        ValueError: an option is unknown or out of range, lr and relative_step do not go together, or a parameter is not
            real floating point.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithms 4 to 6; options and details of
        transformers.optimization.Adafactor.
        Differs: impossible combinations are refused at construction; nothing waits for the device; the state keeps its
        type.
    """

    allowed: ClassVar = {
        "eps": ("[0, inf)", "[0, inf)"),
        "clip_threshold": "(0, inf)",
        "decay_rate": "(-inf, 0]",
        "weight_decay": "[0, inf)",
        "scale_parameter": SWITCH,
        "relative_step": SWITCH,
        "warmup_init": SWITCH,
    }

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
    ) -> None:
        options = {"lr": lr, "eps": eps, "clip_threshold": clip_threshold, "decay_rate": decay_rate, "beta1": beta1}
        options |= {"weight_decay": weight_decay, "scale_parameter": scale_parameter, "relative_step": relative_step}
        super().__init__(params, {**options, "warmup_init": warmup_init, "maximize": maximize})

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["lr"] is not None:
            check_range("lr", group["lr"], "[0, inf)", may_be_tensor=True)
        if group["beta1"] is not None:
            check_range("beta1", group["beta1"], "[0, 1)")
        if (group["lr"] is None) != group["relative_step"]:
            raise ValueError(
                f"Adafactor takes its step either from lr or from relative_step, given lr={group['lr']} and "
                f"relative_step={group['relative_step']}; set lr with relative_step=False, or neither"
            )
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError("warmup_init=True begins a relative step; it needs relative_step=True and no lr")

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return zero statistics: r and c, or v, and m where there is momentum."""
        state: State = {}
        if param.dim() >= 2:
            state["row"] = param.new_zeros(param.shape[:-1], dtype=state_dtype(param))
            state["col"] = param.new_zeros((*param.shape[:-2], param.shape[-1]), dtype=state_dtype(param))
        else:
            state["exp_avg_sq"] = zeros(param)
        if group["beta1"] is not None:
            state["exp_avg"] = zeros(param)
        return state

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Apply the equations of the class's docstring."""
        if param.numel() == 0:
            return
        step_size = base_step(group, state["step"])
        if group["scale_parameter"]:
            step_size = rms(param).clamp_(min=group["eps"][1]) * step_size
        update = self._direction(grad, state, group)
        update.mul_(step_size / (rms(update) / group["clip_threshold"]).clamp_(min=1))
        if group["beta1"] is not None:
            update = state["exp_avg"].lerp_(update, 1 - group["beta1"])
        if group["weight_decay"] != 0:
            param.mul_(1 - group["weight_decay"] * step_size)
        param.sub_(update)

    def _direction(self, grad: Tensor, state: State, group: Group) -> Tensor:
        """Update the averages, and return the gradient over the root of what they say about each element."""
        square, weight = grad * grad + group["eps"][0], state["step"] ** group["decay_rate"]
        if grad.dim() < 2:
            return grad * state["exp_avg_sq"].lerp_(square, weight).rsqrt()
        row: Tensor = state["row"].lerp_(square.mean(-1), weight)
        col: Tensor = state["col"].lerp_(square.mean(-2), weight)
        relative = row / row.mean(-1, keepdim=True)
        return grad * relative.rsqrt().unsqueeze(-1) * col.rsqrt().unsqueeze(-2)


def rms(x: Tensor) -> Tensor:
    """Return √(mean of x²), a 0-dimensional tensor; at least one element."""
    return torch.linalg.vector_norm(x) / x.numel() ** 0.5


def base_step(group: Group, step: int) -> float | Tensor:
    """Return a before it is made relative to the parameter."""
    if not group["relative_step"]:
        lr: float | Tensor = group["lr"]
        return lr
    return min(1e-6 * step if group["warmup_init"] else 1e-2, step**-0.5)


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
                scale = max(group["eps"][1], float(rms(param))) if group["scale_parameter"] else 1.0
                return float(base_step(group, state["step"])) * scale
        return self.reported

    def state_dict(self) -> dict[str, Any]:
        """Return the count of updates; the rest is the optimizer's state."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the count."""
        self.last_epoch = state_dict["last_epoch"]
