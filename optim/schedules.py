"""Learning-rate schedules: formulas of the number of updates and epochs done; all step once per update."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from optim.engine.options import check_range


class ClosedFormSchedule(LRScheduler, ABC):
    """Sets lr = base lr · `factor` in every group; ``step()`` after each update, not after each epoch.

    The base is the group's lr when this schedule first sees it: at construction, or at the first step after
    ``add_param_group``. The lr of the first update is set at construction. A tensor as lr is cloned once, because
    groups may share one tensor, and then filled in place.

    Args:
        optimizer: whose learning rates to set.

    Raises:
        ValueError: a group has no lr.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        for i, group in enumerate(optimizer.param_groups):
            if group.get("lr") is None:
                raise ValueError(
                    f"{type(self).__name__} sets the lr, but group {i} of {type(optimizer).__name__} has none; "
                    "give the optimizer an lr, or train without a schedule"
                )
        self.epoch = 0  # before super().__init__, which calls step and so needs a factor
        super().__init__(optimizer)

    @abstractmethod
    def factor(self, batch: int, epoch: int) -> float:
        """Return lr / base lr after ``batch`` updates, in epoch ``epoch``, both from 0."""

    @property
    def batch(self) -> int:
        """Updates done so far; -1 in a part of torch's ``SequentialLR`` that has not begun."""
        return int(self.last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return each group's learning rate at the present batch and epoch, as numbers."""
        factor = self.factor(self.batch, self.epoch)
        return [float(self._base_lr(group) * factor) for group in self.optimizer.param_groups]

    def _base_lr(self, group: dict[str, Any]) -> float:
        lr = group["lr"]
        # initial_lr as a number marks a group that this class has seen; torch's constructor stores a tensor
        if isinstance(lr, Tensor) and not isinstance(group.get("initial_lr"), float):
            group["lr"] = lr.clone()
        group["initial_lr"] = float(group.get("initial_lr", lr))
        return float(group["initial_lr"])

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the current learning rates, one number per group."""
        # the groups' own: a part of torch's SequentialLR that waits has no rate yet
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step_batch(self, batch: int | None = None) -> None:
        """Count one update, or set the count of updates since the start of training."""
        if batch is None:
            self.step()
            return
        self.last_epoch = batch
        self._apply()

    def step_epoch(self, epoch: int | None = None) -> None:
        """Set the epoch at its start (0 in the first), or, without argument, count one at its end."""
        self.epoch = self.epoch + 1 if epoch is None else int(epoch)
        if self.batch >= 0:  # torch's SequentialLR leaves a part that waits at -1
            self._apply()

    def _apply(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], Tensor):  # in place: a captured CUDA graph reads this very tensor
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return the base learning rates and the counts; the arguments come from the config."""
        # torch's own state_dict holds all attributes: a changed config would be ignored on resuming
        bases = [self._base_lr(group) for group in self.optimizer.param_groups]
        return {"base_lrs": bases, "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state: set the counts and the bases.

        The optimizer's own state holds the learning rates of now: construct the schedule before it is loaded, since a
        construction sets those of the first update.

        Raises:
            ValueError: the state has another number of groups than the optimizer.
        """
        groups, bases = self.optimizer.param_groups, state_dict["base_lrs"]
        if len(bases) != len(groups):
            raise ValueError(f"the schedule was saved for {len(bases)} groups, the optimizer has {len(groups)}")
        for group, base in zip(groups, bases, strict=True):
            group["initial_lr"] = float(base)
        self.epoch, self.last_epoch = state_dict["epoch"], state_dict["batch"]


def linear_warmup(batch: int, warmup_steps: float) -> float:
    """Return the factor of the update after ``batch`` others: 1/(w + 1), 2/(w + 1), …, then 1."""
    # w + 1 and not w: a first update with lr 0 would change nothing
    return min(1.0, (batch + 1) / (warmup_steps + 1))


def whole_steps(option: str, value: float, max_steps: int) -> int:
    """Return a number of updates: ``value`` itself, or, below 1, that share of ``max_steps``.

    Raises:
        ValueError: it is negative, or at least ``max_steps``.
    """
    check_range(option, value, "[0, inf)")
    steps = round(value * max_steps) if value < 1 else round(value)
    if steps >= max_steps:
        raise ValueError(
            f"{option} must be less than max_steps, given {value} and {max_steps}; shorten the warm-up or train longer"
        )
    return steps


def updates_of(value: float, max_steps: int | None) -> float:
    """Return a number of updates: ``value`` itself, or, below 1 and if ``max_steps`` is known, that share of it."""
    return value if max_steps is None or not 0 < value < 1 else max(1, round(value * max_steps))


class Constant(ClosedFormSchedule):
    """The base rate, reached linearly: lr = base · min(1, (b + 1)/(warmup_steps + 1)) after b updates.

    Args:
        optimizer: whose learning rates to set.
        warmup_steps: updates before the base rate is reached; with ``max_steps``, a number below 1 is a share of it.
        max_steps: updates of the whole run; None: a number below 1 is itself.

    Raises:
        ValueError: ``warmup_steps`` is negative.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.Constant(optimizer, warmup_steps=3)
        >>> [schedule.factor(batch, epoch=0) for batch in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: float = 0, max_steps: int | None = None) -> None:
        check_range("warmup_steps", warmup_steps, "[0, inf)")
        self.warmup_steps = updates_of(warmup_steps, max_steps)
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the warm-up's factor; the epoch does not matter."""
        return linear_warmup(batch, self.warmup_steps)


class WarmupInverseSquareRoot(Constant):
    """Rise linearly to the base rate, then fall as 1/√: needs no horizon, so that a run can be extended.

    With b updates done and w = warmup_steps:

        lr = base · min((b + 1)/(w + 1), √((w + 1)/(b + 1)))

    Args:
        optimizer: whose learning rates to set.
        warmup_steps: updates w before the base rate is reached; with ``max_steps``, a number below 1 is a share of it.
        max_steps: updates of the whole run; None: a number below 1 is itself.

    Raises:
        ValueError: ``warmup_steps`` is negative.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762, section 5.3, equation 3.
        Differs: scaled so that the base rate is the peak.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.WarmupInverseSquareRoot(optimizer, warmup_steps=3)
        >>> [schedule.factor(batch, epoch=0) for batch in (0, 1, 2, 3, 15, 63)]
        [0.25, 0.5, 0.75, 1.0, 0.5, 0.25]
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: float, max_steps: int | None = None) -> None:
        super().__init__(optimizer, warmup_steps, max_steps)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the factor of the class's docstring; the epoch does not matter."""
        return float(min(linear_warmup(batch, self.warmup_steps), ((self.warmup_steps + 1) / (batch + 1)) ** 0.5))


class Noam(ClosedFormSchedule):
    """Rise linearly, then fall with the inverse square root; the peak depends on the model's width.

    With update t = 1, 2, …, D = d_model, w = warmup_steps:

        lr = base · D^-½ · min(t^-½, t · w^-1.5)

    The base is a factor of order 1, not a learning rate: the largest lr is base / √(D w).

    Args:
        optimizer: whose learning rates to set; its lr is the factor.
        d_model: the model's width D.
        warmup_steps: updates w until the peak, at least 1.

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762, section 5.3, equation 3 (base 1).

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.Noam(optimizer, d_model=256, warmup_steps=4000)
        >>> [round(schedule.factor(batch, epoch=0), 6) for batch in (0, 3999, 15_999)]
        [0.0, 0.000988, 0.000494]
    """

    def __init__(self, optimizer: Optimizer, d_model: int, warmup_steps: int) -> None:
        check_range("d_model", d_model, "[1, inf)")
        check_range("warmup_steps", warmup_steps, "[1, inf)")
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the product of the class's docstring; the epoch does not matter."""
        update = batch + 1
        return float(self.d_model**-0.5 * min(update**-0.5, update * self.warmup_steps**-1.5))


class WarmupLinear(ClosedFormSchedule):
    """Rise linearly to the base rate, fall linearly to ``min_lr_ratio`` of it, and stay there.

    With b updates done, w = warmup_steps, T = max_steps, r = min_lr_ratio:

        b ≤ w:  lr = base · (b + 1)/(w + 1)
        b > w:  lr = base · (1 − (1 − r) · min(1, (b − w)/(T − w)))

    Args:
        optimizer: whose learning rates to set.
        max_steps: updates T of the whole run.
        warmup_steps: updates w before the base rate is reached, fewer than ``max_steps``; a number below 1 is a share
            of ``max_steps``.
        min_lr_ratio: r, in [0, 1].

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        Devlin et al. 2019, "BERT", arXiv:1810.04805, appendix A.2.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.WarmupLinear(optimizer, max_steps=8, warmup_steps=3)
        >>> [round(schedule.factor(batch, epoch=0), 2) for batch in range(9)]
        [0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    """

    def __init__(self, optimizer: Optimizer, max_steps: int, warmup_steps: float, min_lr_ratio: float = 0.0) -> None:
        check_range("max_steps", max_steps, "[1, inf)")
        check_range("min_lr_ratio", min_lr_ratio, "[0, 1]")
        self.max_steps, self.min_lr_ratio = max_steps, min_lr_ratio
        self.warmup_steps = whole_steps("warmup_steps", warmup_steps, max_steps)
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the factor of the class's docstring; the epoch does not matter."""
        if batch <= self.warmup_steps:
            return linear_warmup(batch, self.warmup_steps)
        # 1 from max_steps on: in a run that is extended, a line would make lr negative, and a cosine would rise again
        return self.decayed(min(1.0, (batch - self.warmup_steps) / (self.max_steps - self.warmup_steps)))

    def decayed(self, done: float) -> float:
        """Return the factor after a part of the updates that follow the warm-up, in (0, 1]."""
        return 1 - (1 - self.min_lr_ratio) * done


class WarmupCosine(WarmupLinear):
    """Rise linearly to the base rate, fall along a cosine to ``min_lr_ratio`` of it, and stay there.

    With b updates done, w = warmup_steps, T = max_steps, r = min_lr_ratio:

        b ≤ w:  lr = base · (b + 1)/(w + 1)
        b > w:  lr = base · (r + (1 − r) · (1 + cos(π · min(1, (b − w)/(T − w))))/2)

    Args:
        optimizer: whose learning rates to set.
        max_steps: updates T of the whole run.
        warmup_steps: updates w before the base rate is reached, fewer than ``max_steps``; a number below 1 is a share
            of ``max_steps``.
        min_lr_ratio: r, in [0, 1].

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        Loshchilov and Hutter 2017, "SGDR", arXiv:1608.03983.
        Differs: one period, no restarts; a warm-up before it.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.WarmupCosine(optimizer, max_steps=8, warmup_steps=1)
        >>> rates = []
        >>> for _ in range(8):
        ...     rates.append(round(optimizer.param_groups[0]["lr"], 2))
        ...     optimizer.step()
        ...     schedule.step()
        >>> rates
        [0.5, 1.0, 0.95, 0.81, 0.61, 0.39, 0.19, 0.05]
    """

    def decayed(self, done: float) -> float:
        """Return the factor after a part of the updates that follow the warm-up, in (0, 1]."""
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2


class WarmupStableDecay(WarmupLinear):
    """Rise linearly to the base rate, stay there, and fall at the end with one minus a square root (WSD).

    Every checkpoint of the stable part can be the start of a decay, so that one long run serves many lengths. With
    b updates done, w = warmup_steps, T = max_steps, d = decay_steps, r = min_lr_ratio:

        b ≤ w:      lr = base · (b + 1)/(w + 1)
        b ≤ T − d:  lr = base
        b > T − d:  lr = base · (r + (1 − r) · (1 − √min(1, (b − (T − d))/d)))

    Args:
        optimizer: whose learning rates to set.
        max_steps: updates T of the whole run.
        warmup_steps: updates w before the base rate is reached; a number below 1 is a share of ``max_steps``.
        decay_steps: updates d of the decay; likewise. Warm-up and decay leave at least one update between them.
        min_lr_ratio: r, in [0, 1].

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        Hu et al. 2024, "MiniCPM", arXiv:2404.06395, section 4 (WSD); the form of the decay is that of
        Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations",
        arXiv:2405.18392.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.WarmupStableDecay(optimizer, max_steps=8, warmup_steps=1, decay_steps=4)
        >>> [round(schedule.factor(batch, epoch=0), 2) for batch in range(9)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.29, 0.13, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_steps: int,
        warmup_steps: float,
        decay_steps: float = 0.2,
        min_lr_ratio: float = 0.0,
    ) -> None:
        check_range("max_steps", max_steps, "[1, inf)")
        self.decay_steps = whole_steps("decay_steps", decay_steps, max_steps)
        if whole_steps("warmup_steps", warmup_steps, max_steps) + self.decay_steps >= max_steps:
            raise ValueError(
                f"warmup_steps and decay_steps must leave something of max_steps, given {warmup_steps}, {decay_steps} "
                f"and {max_steps}"
            )
        super().__init__(optimizer, max_steps, warmup_steps, min_lr_ratio)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the factor of the class's docstring; the epoch does not matter."""
        decay_start = self.max_steps - self.decay_steps
        if batch <= decay_start:
            return linear_warmup(batch, self.warmup_steps)
        # without a decay this line is reached only beyond max_steps
        done = min(1.0, (batch - decay_start) / self.decay_steps) if self.decay_steps else 1.0
        return float(self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 - done**0.5))


class InterpCosine(ClosedFormSchedule):
    """Fall from the base rate to ``min_lr_ratio`` of it, by a mix of linear, half-cosine and cosine; no warm-up.

    With b updates done, T = max_steps, r = min_lr_ratio, x = min(1, b/T), l = linear_scale and h = half_cosine_scale:

        f = l · (1 − x) + h · cos(π x/2) + (1 − l − h) · cos²(π x/2)
        lr = base · (r + (1 − r) · f)

    Args:
        optimizer: whose learning rates to set.
        max_steps: updates T of the whole run.
        linear_scale: share of the line, in [0, 1].
        half_cosine_scale: share of the half-cosine, in [0, 1]; both shares together are at most 1.
        min_lr_ratio: r, in [0, 1].

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        github.com/k2-fsa/icefall, pull request 2082 (commit 7e077af0), zapformer/combined_scheduler.py, class
        InterpCosineLRScheduler; no paper. Its recipe has linear_scale=0.5 and a floor of 0.025.
        Differs: progress is counted in updates.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.InterpCosine(optimizer, max_steps=4, linear_scale=0.5, min_lr_ratio=0.025)
        >>> rates = []
        >>> for _ in range(4):
        ...     rates.append(round(optimizer.param_groups[0]["lr"], 2))
        ...     optimizer.step()
        ...     schedule.step()
        >>> rates
        [1.0, 0.81, 0.51, 0.22]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_steps: int,
        linear_scale: float = 0.0,
        half_cosine_scale: float = 0.0,
        min_lr_ratio: float = 0.0,
    ) -> None:
        check_range("max_steps", max_steps, "[1, inf)")
        check_range("linear_scale", linear_scale, "[0, 1]")
        check_range("half_cosine_scale", half_cosine_scale, "[0, 1]")
        check_range("min_lr_ratio", min_lr_ratio, "[0, 1]")
        if linear_scale + half_cosine_scale > 1:
            raise ValueError(
                "linear_scale and half_cosine_scale are shares, together at most 1, given "
                f"{linear_scale!r} and {half_cosine_scale!r}"
            )
        self.max_steps, self.min_lr_ratio = max_steps, min_lr_ratio
        self.linear_scale, self.half_cosine_scale = linear_scale, half_cosine_scale
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the factor of the class's docstring; the epoch does not matter."""
        progress = min(1.0, batch / self.max_steps)
        half_cosine = math.cos(math.pi / 2 * progress)
        cosine_scale = 1 - self.linear_scale - self.half_cosine_scale
        mix = self.linear_scale * (1 - progress) + self.half_cosine_scale * half_cosine + cosine_scale * half_cosine**2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * mix


class Eden2(ClosedFormSchedule):
    """Decay with the number of batches, after a linear warm-up.

    With batch b and B = lr_batches:

        lr = base · ((b² + B²)/B²)^-½ · warm-up
        warm-up = warmup_start + (1 − warmup_start) · b/warmup_batches     until b = warmup_batches, then 1

    Args:
        optimizer: whose learning rates to set.
        lr_batches: updates after which the rate begins to fall; with ``max_steps``, a number below 1 is a share of it.
        warmup_batches: updates of warm-up, or such a share; 0 for none.
        warmup_start: the factor of the first update of a warm-up, in [0, 1].
        max_steps: updates of the whole run; None: numbers below 1 are themselves.

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        github.com/k2-fsa/icefall/blob/master/egs/librispeech/ASR/zipformer/optim.py, class Eden2; no paper.
        Differs: the rate is set at construction; groups may be added later; shares of a run.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.Eden2(optimizer, lr_batches=5000, warmup_batches=500)
        >>> [round(schedule.factor(batch, epoch=0), 3) for batch in (0, 250, 500, 5000, 50_000)]
        [0.5, 0.749, 0.995, 0.707, 0.1]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_batches: float,
        warmup_batches: float = 500.0,
        warmup_start: float = 0.5,
        max_steps: int | None = None,
    ) -> None:
        check_range("lr_batches", lr_batches, "(0, inf)")
        check_range("warmup_batches", warmup_batches, "[0, inf)")
        check_range("warmup_start", warmup_start, "[0, 1]")
        self.lr_batches = updates_of(lr_batches, max_steps)
        self.warmup_batches = updates_of(warmup_batches, max_steps)
        self.warmup_start = warmup_start
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the product of the class's docstring; the epoch does not matter."""
        # -½ where Eden has -¼ twice: the same fall far beyond lr_batches, without epochs
        decay = (1 + (batch / self.lr_batches) ** 2) ** -0.5
        return decay * warmup_from(self.warmup_start, batch, self.warmup_batches)


class Eden(Eden2):
    """Decay in batches and in epochs, with an optional linear warm-up.

    With batch b, epoch e, B = lr_batches, E = lr_epochs:

        lr = base · ((b² + B²)/B²)^-¼ · ((e² + E²)/E²)^-¼ · warm-up
        warm-up = warmup_start + (1 − warmup_start) · b/warmup_batches     until b = warmup_batches, then 1

    The trainer must also set the epoch: ``step_epoch(epoch)`` at its start.

    Args:
        optimizer: whose learning rates to set.
        lr_batches: updates after which the rate begins to fall; with ``max_steps``, a number below 1 is a share of it.
        lr_epochs: epochs after which the rate begins to fall.
        warmup_batches: updates of warm-up, or such a share; 0 for none; 500 is the reference's default.
        warmup_start: the factor of the first update of a warm-up, in [0, 1].
        max_steps: updates of the whole run; None: numbers below 1 are themselves.

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        github.com/k2-fsa/icefall/blob/master/egs/librispeech/ASR/zipformer/optim.py, class Eden; no paper. Without the
        warm-up also in pruned_transducer_stateless2/optim.py.
        Differs: the rate is set at construction; groups may be added later; shares of a run.

    Examples:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = optim.Eden(optimizer, lr_batches=5000, lr_epochs=6, warmup_batches=500)
        >>> [round(schedule.factor(batch, batch // 2500), 3) for batch in (0, 250, 500, 5000, 50_000)]
        [0.5, 0.75, 0.998, 0.819, 0.169]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_batches: float,
        lr_epochs: float,
        warmup_batches: float = 0.0,
        warmup_start: float = 0.5,
        max_steps: int | None = None,
    ) -> None:
        check_range("lr_epochs", lr_epochs, "(0, inf)")
        self.lr_epochs = lr_epochs
        super().__init__(optimizer, lr_batches, warmup_batches, warmup_start, max_steps)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the product of the class's docstring."""
        # each of the two falls like 1/√ once its count is large: together lr falls like 1/updates
        decay = (1 + (batch / self.lr_batches) ** 2) ** -0.25 * (1 + (epoch / self.lr_epochs) ** 2) ** -0.25
        return decay * warmup_from(self.warmup_start, batch, self.warmup_batches)


def warmup_from(start: float, batch: int, warmup_batches: float) -> float:
    """Return ``start`` at batch 0, rising linearly to 1 at ``warmup_batches``."""
    return 1.0 if batch >= warmup_batches else start + (1 - start) * batch / warmup_batches
