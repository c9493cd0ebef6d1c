"""Between a straight line, half a cosine and its square, down to the end of training."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from optim.engine.options import check_range
from optim.schedules.closed_form import ClosedFormSchedule


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
