"""Adafactor as in Hugging Face and fairseq: factored second moments, steps relative to the parameter's size."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import OR_NONE, SWITCH
from optim.engine.param_batch import Group, ParamBatch, Scalar, Update, at_least, at_most
from optim.engine.transform import Transform
from optim.transforms.clipping import ClipByRms
from optim.transforms.factored import FactoredMoments
from optim.transforms.learning_rate import shrink
from optim.transforms.momentum import Momentum


class Adafactor(Chain):
    """Factored second moments, clipped updates, steps relative to the parameter's size (Hugging Face's form).

    In order: `FactoredMoments` divides the gradient by its averaged size, `ClipByRms` limits the update, `RelativeStep`
    chooses its length and decays the weights, and `Momentum` averages it, with beta1. Means and rms are over the whole
    tensor. For convolutions (out, in, k) the last two axes are factored.

    Use: if state must be small; ``lr=None`` chooses the step by itself, and `AdafactorSchedule` reports it.

    State: 0.10 bytes per float32 parameter, 4.10 with ``beta1``: averages of g² per row and column (``row``, ``col``),
    or per element of other tensors (``exp_avg_sq``); the momentum (``exp_avg``) with beta1.

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate; None with ``relative_step``.
        eps: added to g², and floor of rms(p).
        clip_threshold: rms of the update above which it is scaled down.
        decay_rate: exponent of the averages' weight, at most 0.
        beta1: decay of the momentum, in [0, 1); None for none.
        weight_decay: times the step that lr or `RelativeStep` chooses, the fraction taken off per step.
        scale_parameter: make the step relative to rms(p).
        relative_step: choose the step by the count of steps instead of lr; a schedule cannot set it then.
        warmup_init: begin the relative step at 10⁻⁶.
        cautious_weight_decay: see `shrink`.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, lr and relative_step do not go together, or a parameter is not
            real floating point.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithms 4 to 6. Options, defaults and details are
        those of transformers.optimization.Adafactor.
        Differs: impossible combinations are refused at construction; nothing waits for the device; the state keeps its
        dtype.

    Examples:
        >>> weight = nn.Parameter(torch.ones(300, 200))
        >>> optimizer = optim.Adafactor([weight])  # no lr: steps of at most 1 % of the parameter's size
        >>> weight.grad = torch.randn(300, 200)
        >>> optimizer.step()
        >>> {name: value.numel() for name, value in optimizer.state[weight].items() if name in ("row", "col")}
        {'row': 300, 'col': 200}
    """

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
        cautious_weight_decay: bool = False,
        **common: Unpack[ChainOptions],
    ) -> None:
        own = locals()
        transforms = [FactoredMoments.of(own), ClipByRms(clip_threshold), RelativeStep.of(own), Momentum(beta1)]
        super().__init__(params, transforms, lr=lr, **common)


class RelativeStep(Transform):
    """Multiplies by lr, or by a step of its own, and by the size of the parameter; weight decay uses the same step.

    With rms(p) = √(mean of p²), at the parameter's own step t = 1, 2, …:

        a = lr,  or with relative_step  min(10⁻², 1/√t)  (10⁻⁶ t in place of 10⁻² with warmup_init)
        a ← max(eps₂, rms(p)) · a                           with scale_parameter
        p ← p − weight_decay · a · p,   u ← a u             the decay may be cautious: `shrink`

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, sections 8 and 9.
    """

    allowed: ClassVar = {"lr": "[0, inf)" + OR_NONE}
    eps: Annotated[tuple[float, float], ("[0, inf)", "[0, inf)")]
    weight_decay: Annotated[float, "[0, inf)"]
    cautious_weight_decay: Annotated[bool, SWITCH]
    scale_parameter: Annotated[bool, SWITCH]
    relative_step: Annotated[bool, SWITCH]
    warmup_init: Annotated[bool, SWITCH]

    foreach = True

    def check(self, group: Group) -> None:
        """Refuse an lr that would be ignored, and a step that nothing chooses."""
        if (group["lr"] is None) != group["relative_step"]:
            raise ValueError(
                f"Adafactor takes its step either from lr or from relative_step, given lr={group['lr']} and "
                f"relative_step={group['relative_step']}; set lr with relative_step=False, or neither"
            )
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError("warmup_init=True begins a relative step; it needs relative_step=True and no lr")

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Decay the parameter, and return the update times the step."""
        group, step_size = batch.group, base_step(batch.group, batch.step)
        if group["scale_parameter"]:
            # measured before the decay changes the parameter
            step_size = at_least(batch.rms(batch.param), group["eps"][1]) * step_size
        if group["weight_decay"] != 0:
            shrink(update, batch, group["weight_decay"] * step_size)
        # a factor of the update, multiplied when the parameter moves: no pass over the elements
        return update.times(step_size)


def base_step(group: Group, step: Scalar) -> Scalar:
    """Return a before it is made relative to the parameter."""
    if not group["relative_step"]:
        lr: Scalar = group["lr"]
        return lr
    return at_most(step**-0.5, 1e-6 * step if group["warmup_init"] else 1e-2)


class AdafactorSchedule(LRScheduler):
    """Reports the steps that an `Adafactor` with ``relative_step`` chooses, for trainers that want a schedule.

    It sets nothing. ``get_last_lr`` returns, for each group, the step of its first parameter that was updated, or
    ``initial_lr`` before that.

    Args:
        optimizer: an Adafactor without lr.
        initial_lr: what is reported before the first update.

    Reference:
        transformers.optimization.AdafactorSchedule.
        Differs: needs no gradient when it is asked.

    Examples:
        >>> param = nn.Parameter(torch.ones(2))
        >>> optimizer = optim.Adafactor([param])
        >>> schedule = optim.AdafactorSchedule(optimizer)
        >>> param.grad = torch.ones(2)
        >>> optimizer.step()
        >>> f"{schedule.get_last_lr()[0]:.4f}"  # 1 % of the parameter's size, which is now 0.99
        '0.0099'
    """

    def __init__(self, optimizer: Optimizer, initial_lr: float = 0.0) -> None:
        # not super().__init__: it would read the groups' lr, which is None, and wrap optimizer.step
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
                # one parameter stands for its group: the reference reports the same one
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
