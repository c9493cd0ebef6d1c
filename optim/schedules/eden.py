"""Eden: a rate that falls with the square root of batches and of epochs, once there are many of either."""

from __future__ import annotations

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule, updates_of


class Eden(ClosedFormSchedule):
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
        check_range("lr_batches", lr_batches, "(0, inf)")
        check_range("lr_epochs", lr_epochs, "(0, inf)")
        check_range("warmup_batches", warmup_batches, "[0, inf)")
        check_range("warmup_start", warmup_start, "[0, 1]")
        self.lr_batches, self.lr_epochs = updates_of(lr_batches, max_steps), lr_epochs
        self.warmup_batches = updates_of(warmup_batches, max_steps)
        self.warmup_start = warmup_start
        super().__init__(optimizer)

    def factor(self, batch: int, epoch: int) -> float:
        """Return the product of the class's docstring."""
        # each of the two falls like 1/√ once its count is large: together lr falls like 1/updates
        decay = (1 + (batch / self.lr_batches) ** 2) ** -0.25 * (1 + (epoch / self.lr_epochs) ** 2) ** -0.25
        return decay * warmup_from(self.warmup_start, batch, self.warmup_batches)


def warmup_from(start: float, batch: int, warmup_batches: float) -> float:
    """Return ``start`` at batch 0, rising linearly to 1 at ``warmup_batches``."""
    return 1.0 if batch >= warmup_batches else start + (1 - start) * batch / warmup_batches
