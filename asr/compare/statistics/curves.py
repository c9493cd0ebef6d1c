"""Training curves: mean and spread over seeds on a common grid, and the WER on dev between validations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.compare.inputs.runs import Curve, Run
from asr.compare.result import Axis

Array = NDArray[np.float64]
DEV_WER = "val/wer"  # of a run that is scored by character the CER
MAX_POINTS = 120  # of a grid; more cannot be seen
SMOOTHED_SHARE = 50  # a loss is averaged over 1/50 of its points


@dataclass(frozen=True)
class SeedCurves:
    """Mean and spread of the curves of some seeds; N grid points.

    Attributes:
        grid: (N,) updates or seconds, from the latest first point to the earliest last point of any seed.
        mean: (N,) over the seeds.
        low: (N,) lowest seed.
        high: (N,) highest seed.
        num_seeds: seeds that have a curve.
    """

    grid: Array
    mean: Array
    low: Array
    high: Array
    num_seeds: int


def seed_curves(curves: Sequence[Curve], axis: Axis, *, smoothed: bool = False) -> SeedCurves | None:
    """Interpolate each curve between its points, without extrapolation; None if the curves have no common range.

    Args:
        curves: one per seed; those without a usable point are skipped.
        axis: what the grid counts.
        smoothed: average each curve first, see ``running_mean``.
    """
    usable = [
        points for points in (finite_points(curve, axis, smoothed=smoothed) for curve in curves) if len(points[0])
    ]
    if not usable:
        return None
    start, end = max(x[0] for x, _ in usable), min(x[-1] for x, _ in usable)
    union = np.unique(np.concatenate([x for x, _ in usable]))
    grid: Array = union[(start <= union) & (union <= end)]
    if not len(grid):
        return None
    grid = grid if len(grid) <= MAX_POINTS else np.linspace(start, end, MAX_POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in usable])
    return SeedCurves(grid, values.mean(0), values.min(0), values.max(0), len(usable))


def running_mean(values: Array) -> Array:
    """Average each of N values (N,) with its neighbors on both sides, N/50 values together; fewer near the ends."""
    index = np.arange(len(values))
    half = np.minimum(len(values) // (2 * SMOOTHED_SHARE), np.minimum(index, len(values) - 1 - index))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: Array = (sums[index + half + 1] - sums[index - half]) / (2 * half + 1)
    return means


def finite_points(curve: Curve, axis: Axis, *, smoothed: bool = False) -> tuple[Array, Array]:
    """Return the finite points of a curve, with increasing x; none if the axis was not logged."""
    x = np.array(curve.updates if axis == "updates" else curve.seconds, np.float64)
    y = np.array(curve.values, np.float64)
    if len(x) != len(y):  # no seconds were logged
        return np.empty(0), np.empty(0)
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    y = running_mean(y) if smoothed else y
    latest = np.maximum.accumulate(np.concatenate([[-np.inf], x[:-1]])) if len(x) else x
    return x[x > latest], y[x > latest]


@dataclass(frozen=True)
class DevCurve:
    """A run's WER, or its loss on dev, over training; between two validations its logarithm is a straight line.

    N points, the first at the start of training: a run begins at a WER of 1, where nothing is recognized; its loss
    there is taken to be that of the first validation. A WER of 0 has no logarithm: the line to it is one of WERs.

    Attributes:
        times: (N,) updates or seconds.
        wers: (N,) fractions, or losses.
    """

    times: Array
    wers: Array

    def first_time(self, target_wer: float) -> float:
        """Return when the WER was first at most ``target_wer``, which is below 1; infinity if it never was."""
        reached = np.flatnonzero(self.wers <= target_wer)
        if not len(reached):
            return np.inf
        if reached[0] == 0:
            return float(self.times[1])  # a loss; what it was before its first validation is not known
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


def dev_curve(run: Run, axis: Axis, metric: str = DEV_WER) -> DevCurve | None:
    """Return the curve of a run; None if it has logged none."""
    if metric not in run.curves:
        return None
    times, values = finite_points(run.curves[metric], axis)
    later = times > 0
    if not later.any():
        return None
    times, values = times[later], values[later]
    return DevCurve(np.append(0.0, times), np.append(1.0 if metric == DEV_WER else values[0], values))
