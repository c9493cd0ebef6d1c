"""Noam: the rate of the first transformer, tied to its width."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule


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
