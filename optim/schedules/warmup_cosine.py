"""Linear warm-up, then half a cosine down to the end of training."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, linear_warmup, whole_steps


class WarmupCosine(ClosedFormSchedule):
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
        # 1 from max_steps on: a run that is extended stays at the lowest rate, where the cosine would rise again
        done = min(1.0, (batch - self.warmup_steps) / (self.max_steps - self.warmup_steps))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2
