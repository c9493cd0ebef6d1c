"""Linear warm-up, then a fall with the inverse square root, without an end."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, linear_warmup, updates_of


class WarmupInverseSquareRoot(ClosedFormSchedule):
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
        check_range("warmup_steps", warmup_steps, "[0, inf)")
        self.warmup_steps = updates_of(warmup_steps, max_steps)
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the factor of the class's docstring; the epoch does not matter."""
        return float(min(linear_warmup(batch, self.warmup_steps), ((self.warmup_steps + 1) / (batch + 1)) ** 0.5))
