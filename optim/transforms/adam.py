"""Updates over the root of their averaged squares: Adam, LaProp, and torch's kernel of AdamW that computes both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from optim.engine.options import SWITCH
from optim.engine.param_batch import (
    HALF,
    ForeachBatch,
    Group,
    ParamBatch,
    ParamEntry,
    Scalar,
    TensorList,
    Update,
    constant,
)
from optim.engine.transform import FusedTransform, OptionHolder, Transform
from optim.transforms.learning_rate import DecoupledDecay, LearningRate, decay_of, learning_rate

BETAS = ("[0, 1)", "[0, 1)")
FUSED_ON = ("cpu", "cuda", "meta", "mps", "xpu")


class Adam(FusedTransform):
    """The direction of Adam; a later transform scales it.

        m ← β₁ m + (1 − β₁) u,   v ← β₂ v + (1 − β₂) u²
        u = m/(1 − β₁ᵗ) / (√v/√(1 − β₂ᵗ) + eps)                                     β₂ may follow a schedule: `beta2_of`

    If only `DecoupledDecay` and `LearningRate` follow, torch's kernel does all in one pass over memory.

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Kingma and Ba 2015, "Adam", arXiv:1412.6980, algorithm 1; the kernel of torch.optim.AdamW(fused=True).
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.999)
    eps: Annotated[float, "[0, inf)"] = 1e-8
    averages = ("exp_avg", "exp_avg_sq")
    foreach = shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the averaged update over the root of its averaged square."""
        u = update.value()
        beta1, beta2 = batch.group["betas"][0], beta2_of(batch)
        # lerp_ instead of mul_ and add_: one pass over m
        m = batch.state["exp_avg"].lerp_(u, 1 - beta1)
        v = average_squares(batch.state["exp_avg_sq"], u, beta2)
        # m/(√v/c + eps) = c m/(√v + c eps) saves a pass over the elements
        c = beta2_correction(batch) ** 0.5
        return Update(m / v.sqrt().add_(c * batch.group["eps"]), c / (1 - beta1**batch.step), overwritable=True)

    def fuses(self, later: Sequence[Transform]) -> bool:
        """Return whether the learning rate follows, and at most the decay of weights before it."""
        *decays, last = later or [self]
        # the kernel decays before it moves, and reads the options under their plain names
        known = isinstance(last, LearningRate) and all(type(decay) is DecoupledDecay for decay in decays)
        return known and len(decays) <= 1 and not any(transform.prefix for transform in later)

    def takes_found_inf(self, group: Group, entries: Sequence[ParamEntry]) -> bool:
        """Return whether torch's kernel, which can skip, takes all of the parameters as they are."""
        tensor_decay = group.get("corrected_weight_decay") and isinstance(group["lr"], Tensor)
        return not (group.get("palm") or tensor_decay) and all(
            entry.param.dtype not in HALF
            and entry.shard is None
            and has_kernel(entry.param.device, group["lr"])
            and same_layout(entry.param, entry.state[self.prefix + "exp_avg"])
            for entry in entries
        )

    def move(self, update: Update, batch: ParamBatch, later: Sequence[Transform]) -> None:
        """Decay the weights if a later transform does, apply Adam's equations, and subtract lr times the result."""
        # not the option alone: Eve has a weight_decay too, which an earlier transform of its own applies
        weight_decay = decay_of(batch) if len(later) > 1 else 0.0
        u, palm_on_device = update.value(), isinstance(batch.step, Tensor) and batch.group.get("palm")
        params, us, ms = map(batch.tensors, (batch.param, u, batch.state["exp_avg"]))
        # the kernel takes no decay that is a tensor
        known = has_kernel(batch.param.device, batch.group["lr"]) and not palm_on_device
        if known and not isinstance(weight_decay, Tensor) and same_layout(batch.param, batch.state["exp_avg"]):
            us = [u if same_layout(u, m) else torch.empty_like(m).copy_(u) for u, m in zip(us, ms, strict=True)]
            _fused_step(params, us, ms, batch.tensors(batch.state["exp_avg_sq"]), batch, weight_decay)
        elif isinstance(batch, ForeachBatch):
            for one, part in zip(batch.each(update), batch.parts, strict=True):
                self.move(one, part, later)
        else:
            lr = learning_rate(batch)
            batch.param.mul_(1 - lr * weight_decay)
            self(Update(u), batch).times(lr).subtract_from(batch.param)


def _fused_step(
    params: list[Tensor],
    updates: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    batch: ParamBatch,
    weight_decay: Scalar,
) -> None:
    device, group, steps = params[0].device, batch.group, batch.step
    lr: Any = learning_rate(batch)
    if group.get("palm"):
        # an infinite count turns off both corrections of the kernel: only that of m belongs there, as a part of lr
        correction, steps = 1 - group["betas"][0] ** batch.step, math.inf
        lr, weight_decay = lr / correction, weight_decay * correction
    # the kernel wants a count of steps on its device; a fill waits for no device, where a copy would
    if isinstance(steps, Tensor):
        count = steps.float()
        # other devices than a CPU read the memory of the rate as float32
        lr = lr.float() if isinstance(lr, Tensor) and device.type != "cpu" else lr
    else:
        count = torch.full((), float(steps), dtype=torch.float32, device=device)
    # a rate on another GPU is copied as torch's own class does; one on a CPU is read
    lr = lr.to(device, non_blocking=True) if isinstance(lr, Tensor) and lr.device.type != "cpu" else lr
    found_inf = None if batch.found_inf is None else batch.found_inf.float().reshape(1)
    numbers = {"lr": lr, "weight_decay": weight_decay, "beta1": group["betas"][0], "found_inf": found_inf}
    _call_kernel((params, updates, averages, squares), count, batch, **numbers)


def _call_kernel(tensors: Sequence[list[Tensor]], count: Tensor, batch: ParamBatch, **numbers: Any) -> None:
    # torch.optim.adamw.adamw calls this too, but sorts the tensors again, adds 1 to the count of each, and takes as
    # long for that as the kernel does for most tensors
    torch._fused_adamw_(  # type: ignore[call-overload]  # no rate is a tensor that it could not take: see `move`
        *tensors,
        [],
        [count] * len(tensors[0]),
        amsgrad=False,
        beta2=beta2_of(batch),
        eps=batch.group["eps"],
        grad_scale=None,
        **{"maximize": False, "found_inf": None, **numbers},
    )


class NormalizedMomentum(Transform):
    """Averages the update after it was divided by the root of its averaged square.

        v ← β₂ v + (1 − β₂) u²
        m ← β₁ m + (1 − β₁) u/(√(v/(1 − β₂ᵗ)) + eps),   u ← m/(1 − β₁ᵗ)             β₂ may follow a schedule: `beta2_of`

    State: m (``exp_avg``) and v (``exp_avg_sq``).

    Args:
        betas: decay of the two averages, each in [0, 1).
        eps: added to the root, at least 0.
        name: see `Transform`.

    Reference:
        Ziyin et al. 2020, "LaProp", arXiv:2002.04839, algorithm 1.
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.999)
    eps: Annotated[float, "[0, inf)"] = 1e-15
    averages = ("exp_avg", "exp_avg_sq")
    foreach = shardable = True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the average of the divided updates."""
        u, beta1, beta2 = update.value(), batch.group["betas"][0], beta2_of(batch)
        m, v = batch.state["exp_avg"], batch.state["exp_avg_sq"]
        on_cpu = u.device.type == "cpu" and not isinstance(batch.step, Tensor)
        if on_cpu and same_layout(u, m) and same_layout(m, v):
            # to torch's kernel m is a parameter that decays by β₁ and climbs by 1 − β₁ times the divided u
            step_by_rms(m, u, v, batch, lr=1 - beta1, decay=1.0, ascend=True)
        else:
            average_squares(v, u, beta2)
            root = v.sqrt().div_(beta2_correction(batch) ** 0.5).add_(batch.group["eps"])
            m.mul_(beta1).addcdiv_(u, root, value=1 - beta1)
        # the statistic itself leaves, not marked as overwritable: later transforms must not write to it
        return Update(m, 1 / (1 - beta1**batch.step))


class PalmBeta2(OptionHolder):
    """Holds the options of `beta2_of`; a rule that calls it has the schedule.

    Args:
        palm: replace ``betas[1]`` by a schedule.
        beta2_scale: exponent of the schedule, above 0.
        name: see `Transform`.

    Reference:
        Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, section 7.2; Chowdhery et al. 2022, "PaLM",
        arXiv:2204.02311, section 5, with 0.8.
    """

    palm: Annotated[bool, SWITCH] = False
    beta2_scale: Annotated[float, "(0, inf)"] = 0.8


def beta2_of(batch: ParamBatch) -> Scalar:
    """Return the decay β₂ of this step: ``betas[1]``, or 1 − t^-beta2_scale with ``palm``."""
    group = batch.group
    beta2: Scalar = 1 - batch.step ** -group["beta2_scale"] if group.get("palm") else group["betas"][1]
    return beta2


def beta2_correction(batch: ParamBatch) -> Scalar:
    """Return what an average of squares has to be divided by: the sum of its weights, 1 − ∏ β₂."""
    # PaLM's β₂ is 0 at the first step, so that its average never contains the zero it began with
    return 1.0 if batch.group.get("palm") else 1 - batch.group["betas"][1] ** batch.step


def average_squares(v: Tensor, u: Tensor, beta2: Scalar) -> Tensor:
    """Return v ← β₂ v + (1 − β₂) u², changed in place; u has its shape."""
    if isinstance(beta2, Tensor):
        # `value` must be a Python number, which would be read from the device
        return v.lerp_(u * u, 1 - beta2)
    return v.mul_(beta2).addcmul_(u, u, value=1 - beta2)


def has_kernel(device: torch.device, lr: Any) -> bool:
    """Return whether torch has its kernel of AdamW for a device and a rate."""
    # none for rates that are tensors on the meta device, where optimizers are tried (torch 2.13)
    return device.type in FUSED_ON and not (device.type == "meta" and isinstance(lr, Tensor))


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Return whether a kernel that walks through the memory of both meets the same elements.

    Tensors of unlike shapes, as after ``param.data`` was replaced by a larger tensor, have no such layout: a kernel
    would write beyond the smaller one.
    """
    if isinstance(a, TensorList):
        return all(map(same_layout, a.tensors, listed(b)))
    # nearly all tensors are contiguous, and that is asked faster
    return a.shape == b.shape and ((a.is_contiguous() and b.is_contiguous()) or a.stride() == b.stride())


def listed(x: Tensor) -> list[Tensor]:
    """Return the tensors of a `TensorList`, or the one tensor, of any shape, as torch's kernels take them."""
    return x.tensors if isinstance(x, TensorList) else [x]


def step_by_rms(
    target: Tensor,
    u: Tensor,
    v: Tensor,
    batch: ParamBatch,
    *,
    lr: float | Tensor,
    decay: float,
    corrects: bool = True,
    ascend: bool = False,
) -> None:
    """Average u² in v, and move the target by the update over its root mean square, in one pass over memory.

        v ← β₂ v + (1 − β₂) u²
        target ← (1 − lr · decay) target − lr · u/(√(v/(1 − β₂ᵗ)) + eps)                       + instead of − to ascend

    Args:
        target: any shape; changed in place. u and v have its shape and layout.
        u: the update, which is not modified.
        v: averaged squares, changed in place.
        batch: whose step is t, a number, and whose group has eps and β₂ as in `beta2_of`.
        lr: length of the step; a tensor of one element is allowed.
        decay: see above.
        corrects: whether to divide by 1 − β₂ᵗ, unless β₂ is PaLM's; see `beta2_correction`.
        ascend: add the step instead of subtracting it.
    """
    if isinstance(u, TensorList):
        tensors = listed(target), u.tensors, _zeros_like(u.tensors), listed(v)
    else:
        tensors = [target], [u], [torch.zeros_like(u)], [v]
    # the kernel corrects by 1 − β₂^count: an infinite count turns that off; a GPU reads it as float32
    count = float(batch.step) if corrects and not batch.group.get("palm") else math.inf
    steps = constant(count, tensors[1][0], torch.float32)
    # zeros are the momentum, which beta1=0 leaves without effect
    _call_kernel(tensors, steps, batch, lr=lr, weight_decay=decay, beta1=0.0, maximize=ascend)


def _zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    if not all(x.is_contiguous() for x in tensors):
        return [torch.zeros_like(x) for x in tensors]
    sizes = [x.numel() for x in tensors]
    parts = tensors[0].new_zeros(sum(sizes)).split(sizes)
    return [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]
