"""Compares systems by the time to a WER on the development sets, and by that WER at equal time."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from asr.compare.inputs.runs import Run
from asr.compare.result import Axis, EqualTime, ProgressRow, SeedContrast, TimeRow, TimesToTarget
from asr.compare.statistics.curves import DEV_WER, DevCurve, dev_curve
from asr.compare.statistics.pairs import SeedDifferences

LEAST_STEP = 1e-3  # of WERs, where none differ

Values = Mapping[str, Mapping[int, float]]


def times_to_target(
    runs: Sequence[Run],
    target: float,
    axis: Axis,
    level: float,
    baseline: str | None = None,
    unfinished: Collection[tuple[str, int]] = (),
    only_with: str | None = None,
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
        level: of intervals and verdicts.
        baseline: system that the others are compared with; None, or one without times: the fastest.
        unfinished: systems and seeds of runs that have failed.
        only_with: test only pairs with this system; None: all pairs.
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
    ranked, reference, differences = _compared(logs, level, resolution, baseline, only_with, never)
    rows = [
        TimeRow(
            system=name,
            num_reached=num_reached[name],
            num_runs=len(logs[name]),
            mean=math.exp(statistics.mean(logs[name].values())),
            contrast=None if (contrast := differences.contrast(name, reference)) is None else _ratio(contrast),
        )
        for name in ranked
    ]
    return TimesToTarget(axis, budget, reference, rows, [_ratio(contrast) for contrast in differences.pairs()])


def equal_time(
    runs: Sequence[Run],
    level: float,
    seconds: float | None = None,
    baseline: str | None = None,
    only_with: str | None = None,
) -> EqualTime | None:
    """Return the WER of each system after the same time of training, and its mean over the updates so far.

    Args:
        runs: of all systems, one per seed; those that never learned are left out, unless no run of a system has, which
            then has no verdicts.
        level: of intervals and verdicts.
        seconds: of training; None: the time of the fastest run, rounded down to two digits in minutes.
        baseline: system that the others are compared with; None, or one without runs: the best.
        only_with: test only pairs with this system; None: all pairs.

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
    learned = {(run.system, run.seed) for run, curve in by_time if _has_learned(run, curve)}
    systems = {system for system, _ in learned}
    for (run, timed), (_, counted) in zip(by_time, by_update, strict=True):
        if (run.system, run.seed) in learned or run.system not in systems:
            wers[run.system][run.seed] = timed.wer_at(seconds)
            areas[run.system].append(counted.mean_until(num_updates))
    steps = np.diff(np.unique(np.round([wer for _, curve in by_time for wer in curve.wers], 9)))
    # WERs come in whole words; that of all is the same if nobody has learned
    resolution = float(min(steps, default=LEAST_STEP))
    unlearned = wers.keys() - systems
    ranked, reference, differences = _compared(wers, level, resolution, baseline, only_with, unlearned=unlearned)
    rows = [
        ProgressRow(
            system=name,
            num_runs=len(areas[name]),
            wer_mean=statistics.mean(wers[name].values()),
            wer_sd=_sd([*wers[name].values()]),
            area=statistics.mean(areas[name]),
            area_sd=_sd(areas[name]),
            contrast=differences.contrast(name, reference),
        )
        for name in ranked
    ]
    num_earlier = sum(bool(curve.times[-1] < seconds) for _, curve in by_time)
    return EqualTime(seconds, num_earlier, reference, rows, differences.pairs())


def _has_learned(run: Run, curve: DevCurve) -> bool:
    """Return whether hypotheses of any test set depend on the audio; if no set tells, whether the WER fell."""
    tested = [errors.depends_on_audio for errors in run.sets.values() if errors.depends_on_audio is not None]
    return any(tested) if tested else bool(curve.wers.min() < 1)


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


def _compared(
    values: Values,
    level: float,
    resolution: float,
    baseline: str | None,
    only_with: str | None,
    unknown: Collection[str] = (),
    unlearned: Collection[str] = (),
) -> tuple[list[str], str, SeedDifferences]:
    """Return the systems, lowest mean first, that which the others are compared with, and all differences."""
    ranked = sorted(values, key=lambda name: (statistics.mean(values[name].values()), name))
    several = [name for name in ranked if len(values[name]) > 1] or ranked
    reference = baseline if baseline is not None and baseline in values else several[0]
    return ranked, reference, SeedDifferences(values, level, resolution, unknown, only_with, unlearned)


def _ratio(contrast: SeedContrast) -> SeedContrast:
    """Return a difference of logarithms as a ratio."""
    value, low, high = (float(np.exp(end)) for end in (contrast.value, contrast.low, contrast.high))
    return replace(contrast, value=value, low=low, high=high)


def _sd(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None
