"""Eden2: Eden without epochs, for runs that count updates only."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, updates_of
from optim.schedules.eden import warmup_from


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
