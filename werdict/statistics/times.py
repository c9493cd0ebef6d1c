"""Learning curves, and when systems reach a WER or what they reach in a time."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from werdict.result import Axis, EqualTime, ProgressRow, Scale, TimeRow, TimesToTarget
from werdict.runs import Curve, Run
from werdict.statistics.judge import Judge

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


LEAST_STEP = 1e-3  # of WERs, where none differ

Values = Mapping[str, Mapping[int, float]]


def times_to_target(
    runs: Sequence[Run],
    target: float,
    axis: Axis,
    alpha: float,
    baseline: str,
    unfinished: Collection[tuple[str, int]] = (),
    metric: str = DEV_WER,
) -> TimesToTarget | None:
    """Return when each system first had a WER, or loss, of at most ``target``; None if runs logged no times.

    A run that never has it, maybe because it failed, is not left out: its time t lies beyond the budget T that all runs
    had. So min(t, T) is compared: its geometric mean over seeds, and ratios of two. Systems that never reach the target
    are not compared with each other.

    Args:
        runs: of all systems, one per seed; those without a curve of the WER are left out.
        target: of a WER, a fraction below 1.
        axis: unit of the times.
        alpha: 1 - level of each question.
        baseline: system that the others are compared with; the fastest stands in if it has no times.
        unfinished: systems and seeds of runs that have failed.
        metric: curve that is to fall to the target.

    Reference:
        Royston and Parmar 2013, "Restricted mean survival time: an alternative to the hazard ratio for the design and
        analysis of randomized trials with a time-to-event outcome", BMC Medical Research Methodology 13:152, for the
        mean of min(t, T). Differs: its logarithm is averaged, over pairs of seeds, and no survival curve is needed,
        because all runs are followed up to T.
    """
    curves = _curves(runs, axis, metric)
    if curves is None:
        return None
    budget = _common_end(curves, axis)
    first_times: dict[str, dict[int, float]] = defaultdict(dict)
    for run, curve in curves:
        first_times[run.system][run.seed] = curve.first_time(target)
    for system, seed in unfinished:
        if system in first_times:
            first_times[system].setdefault(seed, math.inf)
    num_reached = {name: sum(time <= budget for time in times.values()) for name, times in first_times.items()}
    logs = {
        name: {seed: math.log(min(time, budget)) for seed, time in times.items()} for name, times in first_times.items()
    }
    never = [name for name, num in num_reached.items() if not num]
    # a tick of the axis: one update, or what one takes
    resolution = 1 / _common_end(curves, "updates")
    ranked, reference = _ranked(logs, baseline)
    judge = Judge(logs, dict.fromkeys(logs, resolution), alpha, "ratio", unknown=never)
    contrasts, best = judge.from_baseline(reference), judge.may_be_best()
    rows = [
        TimeRow(
            system=name,
            num_reached=num_reached[name],
            num_runs=len(logs[name]),
            mean=math.exp(statistics.mean(logs[name].values())),
            may_be_best=name in best and name not in never,
            contrast=contrasts.get(name),
        )
        for name in ranked
    ]
    return TimesToTarget(axis, budget, reference, rows)


def equal_time(
    runs: Sequence[Run],
    alpha: float,
    scale: Scale,
    seconds: float | None,
    baseline: str,
) -> EqualTime | None:
    """Return the WER of each system after the same time of training, and its mean over the updates so far.

    Args:
        runs: of all systems, one per seed.
        alpha: 1 - level of the question.
        scale: of the contrasts.
        seconds: of training; None: the time of the fastest run, rounded down to two digits in minutes.
        baseline: system that the others are compared with; the best stands in if it has no times.

    Returns:
        None if runs logged no times.
    """
    by_time, by_update = _curves(runs, "seconds"), _curves(runs, "updates")
    if by_time is None or by_update is None:
        return None
    if seconds is None:
        minutes = _common_end(by_time, "seconds") / 60
        unit = 10.0 ** (math.floor(math.log10(minutes)) - 1)
        seconds = 60 * round(math.floor(minutes / unit) * unit, 9)
    num_updates = _common_end(by_update, "updates")
    wers: dict[str, dict[int, float]] = defaultdict(dict)
    areas: dict[str, list[float]] = defaultdict(list)
    for (run, timed), (_, counted) in zip(by_time, by_update, strict=True):
        wers[run.system][run.seed] = timed.wer_at(seconds)
        areas[run.system].append(counted.mean_until(num_updates))
    steps = np.diff(np.unique(np.round([wer for _, curve in by_time for wer in curve.wers], 9)))
    # WERs come in whole words; that of all is the same if nobody has learned
    step = float(min(steps, default=LEAST_STEP))
    ranked, reference = _ranked(wers, baseline)
    resolution = dict.fromkeys(wers, step)
    values: Values = wers
    if scale == "ratio":
        rates = {
            name: {seed: min(max(wer, step / 2), 1.0) for seed, wer in group.items()} for name, group in wers.items()
        }
        resolution = {name: step / statistics.mean(group.values()) for name, group in rates.items()}
        values = {name: {seed: math.log(rate) for seed, rate in group.items()} for name, group in rates.items()}
    contrasts = Judge(values, resolution, alpha, scale).from_baseline(reference)
    rows = [
        ProgressRow(
            system=name,
            num_runs=len(areas[name]),
            wer_mean=statistics.mean(wers[name].values()),
            wer_sd=_sd([*wers[name].values()]),
            area=statistics.mean(areas[name]),
            area_sd=_sd(areas[name]),
            contrast=contrasts.get(name),
        )
        for name in ranked
    ]
    num_earlier = sum(bool(curve.times[-1] < seconds) for _, curve in by_time)
    return EqualTime(seconds, num_earlier, reference, rows)


def _curves(runs: Sequence[Run], axis: Axis, metric: str = DEV_WER) -> list[tuple[Run, DevCurve]] | None:
    """Return the runs that were validated, with their curves; None if there are none, or one lacks times."""
    validated = [run for run in runs if metric in run.curves]
    curves = [(run, curve) for run in validated if (curve := dev_curve(run, axis, metric)) is not None]
    return curves if curves and len(curves) == len(validated) else None


def _common_end(curves: Sequence[tuple[Run, DevCurve]], axis: Axis) -> float:
    """Return what all runs had of updates or seconds; one that was stopped early would have had more."""
    ends = []
    for run, _ in curves:
        log = max((curve for curve in run.curves.values() if getattr(curve, axis)), key=lambda curve: curve.updates[-1])
        ends.append((log.updates[-1] >= (run.cost.num_updates or 0), getattr(log, axis)[-1]))
    return float(min([end for is_whole, end in ends if is_whole] or [end for _, end in ends]))


def _ranked(values: Values, baseline: str) -> tuple[list[str], str]:
    """Return the systems, lowest mean first, and that which the others are compared with."""
    ranked = sorted(values, key=lambda name: (statistics.mean(values[name].values()), name))
    return ranked, baseline if baseline in values else ranked[0]


def _sd(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None
