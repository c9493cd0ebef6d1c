"""Warm-up, a long stable part, a short decay."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, linear_warmup, whole_steps


class WarmupStableDecay(ClosedFormSchedule):
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
        check_range("min_lr_ratio", min_lr_ratio, "[0, 1]")
        self.max_steps, self.min_lr_ratio = max_steps, min_lr_ratio
        self.warmup_steps = whole_steps("warmup_steps", warmup_steps, max_steps)
        self.decay_steps = whole_steps("decay_steps", decay_steps, max_steps)
        if self.warmup_steps + self.decay_steps >= max_steps:
            raise ValueError(
                f"warmup_steps and decay_steps must leave something of max_steps, given {warmup_steps}, {decay_steps} "
                f"and {max_steps}"
            )
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the factor of the class's docstring; the epoch does not matter."""
        decay_start = self.max_steps - self.decay_steps
        if batch <= decay_start:
            return linear_warmup(batch, self.warmup_steps)
        # without a decay this line is reached only beyond max_steps
        done = min(1.0, (batch - decay_start) / self.decay_steps) if self.decay_steps else 1.0
        return float(self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 - done**0.5))
