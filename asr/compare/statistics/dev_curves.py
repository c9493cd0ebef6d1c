"""WER of a run on the development sets between its validations; N points, the first at the start of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.compare.inputs.runs import Run
from asr.compare.speed import Axis
from asr.compare.statistics.curves import DEV_WER, finite_points

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DevCurve:
    """A run's WER over training; between two validations its logarithm is a straight line.

    A run begins at a WER of 1, where nothing is recognized. A WER of 0 has no logarithm: the line to it is one of WERs.

    Attributes:
        times: (N,) updates or seconds.
        wers: (N,) fractions.
    """

    times: Array
    wers: Array

    def first_time(self, target_wer: float) -> float:
        """Return when the WER was first at most ``target_wer``, which is below 1; infinity if it never was."""
        reached = np.flatnonzero(self.wers <= target_wer)
        if not len(reached):
            return np.inf
        before, after = self.wers[reached[0] - 1], self.wers[reached[0]]
        share = (before - target_wer) / before
        if after > 0:
            share = np.log(before / target_wer) / np.log(before / after)
        start, end = self.times[reached[0] - 1], self.times[reached[0]]
        return float(start + share * (end - start))

    def wer_at(self, time: float) -> float:
        """Return the WER at a time; after the end, the last."""
        place = int(np.searchsorted(self.times, time, side="right"))
        if place == len(self.times):
            return float(self.wers[-1])
        before, after = self.wers[place - 1], self.wers[place]
        share = (time - self.times[place - 1]) / (self.times[place] - self.times[place - 1])
        if min(before, after) > 0:
            return float(before ** (1 - share) * after**share)
        return float((1 - share) * before + share * after)

    def mean_until(self, end: float) -> float:
        """Return the area under the curve up to a time, by trapezoids, divided by that time."""
        inside = self.times < end
        wers = np.append(self.wers[inside], self.wer_at(end))
        return float(np.trapezoid(wers, np.append(self.times[inside], end)) / end)


def dev_curve(run: Run, axis: Axis) -> DevCurve | None:
    """Return the curve of a run; None if it has logged none."""
    if DEV_WER not in run.curves:
        return None
    times, wers = finite_points(run.curves[DEV_WER], axis)
    later = times > 0
    if not later.any():
        return None
    return DevCurve(np.append(0.0, times[later]), np.append(1.0, wers[later]))
