"""Linear warm-up, then a straight line down to the end of training."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, linear_warmup, whole_steps


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
        # 1 from max_steps on: the line would make lr negative
        done = min(1.0, (batch - self.warmup_steps) / (self.max_steps - self.warmup_steps))
        return 1 - (1 - self.min_lr_ratio) * done
