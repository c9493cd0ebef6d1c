"""How soon trainings reach a WER."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from asr.evaluation.comparison.result import TimeToTarget
from asr.evaluation.comparison.runs import Curve, Run

DEV_WER = "val/wer"


def time_to_target(runs: Sequence[Run], target_wer: float) -> TimeToTarget:
    """Return when the runs of a contestant first had a WER of at most ``target_wer`` on the development sets.

    A run that never had one counts as later than all others, so that it moves the median too.
    """
    reached = [_first(run.curves.get(DEV_WER), target_wer) for run in runs]
    updates = statistics.median(at for at, _ in reached)
    seconds = statistics.median(after for _, after in reached)
    return TimeToTarget(
        num_reached=sum(math.isfinite(at) for at, _ in reached),
        updates=updates if math.isfinite(updates) else None,
        # not a number where one run has no clock: then nothing is known of the median
        seconds=seconds if math.isfinite(seconds) else None,
    )


def _first(curve: Curve | None, target_wer: float) -> tuple[float, float]:
    """Return updates and seconds of the first point at or below the target; infinite where there is none."""
    for index, value in enumerate(curve.values if curve else ()):
        if curve and value <= target_wer:
            return curve.updates[index], curve.seconds[index] if curve.seconds else math.nan
    return math.inf, math.inf
