"""One learning rate throughout, after an optional warm-up."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, linear_warmup, updates_of


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
