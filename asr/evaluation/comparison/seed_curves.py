"""Curves of several seeds as one: their mean and their spread on a common grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asr.evaluation.comparison.runs import Curve

Array = NDArray[np.float64]
Axis = Literal["updates", "seconds"]
MAX_POINTS = 120  # of a grid; more are not seen
SMOOTHED_SHARE = 50  # a loss is averaged over one part in so many of its points


@dataclass(frozen=True)
class SeedCurves:
    """Mean and spread of the curves of some seeds; N grid points.

    Attributes:
        grid: (N,) updates or seconds, from the latest first point to the earliest last one.
        mean: (N,) over the seeds.
        low: (N,) lowest seed.
        high: (N,) highest seed.
        num_seeds: that have a curve.
    """

    grid: Array
    mean: Array
    low: Array
    high: Array
    num_seeds: int


def seed_curves(curves: Sequence[Curve], axis: Axis, *, smoothed: bool = False) -> SeedCurves | None:
    """Interpolate between the points of each curve, never beyond them; None where no point is common to all.

    Args:
        curves: one per seed; those without a usable point are passed over.
        axis: what the grid counts.
        smoothed: average each curve first, see ``running_mean``.
    """
    usable = [points for points in (_points(curve, axis, smoothed) for curve in curves) if len(points[0])]
    if not usable:
        return None
    grid = _grid([at for at, _ in usable])
    if not len(grid):
        return None
    values = np.stack([np.interp(grid, at, heights) for at, heights in usable])
    return SeedCurves(grid, values.mean(0), values.min(0), values.max(0), len(usable))


def running_mean(values: Array) -> Array:
    """Average each value with its neighbours on both sides, a 1/50 of all values together; fewer near the ends."""
    half = np.minimum(len(values) // (2 * SMOOTHED_SHARE), _distance_to_end(len(values)))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    means: Array = (sums[index + half + 1] - sums[index - half]) / (2 * half + 1)
    return means


def _distance_to_end(length: int) -> NDArray[np.int64]:
    index = np.arange(length)
    return np.minimum(index, length - 1 - index)


def _points(curve: Curve, axis: Axis, smoothed: bool) -> tuple[Array, Array]:
    """Return the finite points of a curve, at places that grow."""
    at = np.array(curve.updates if axis == "updates" else curve.seconds, np.float64)
    values = np.array(curve.values, np.float64)
    if len(at) != len(values):  # no seconds were logged
        return np.empty(0), np.empty(0)
    finite = np.isfinite(at) & np.isfinite(values)
    at, values = at[finite], values[finite]
    values = running_mean(values) if smoothed else values
    ahead = np.maximum.accumulate(np.concatenate([[-np.inf], at[:-1]])) if len(at) else at
    return at[at > ahead], values[at > ahead]


def _grid(places: Sequence[Array]) -> Array:
    """Return all places where any seed was measured, within what all were; evenly spaced ones instead of many."""
    start, end = max(at[0] for at in places), min(at[-1] for at in places)
    union = np.unique(np.concatenate(places))
    inside: Array = union[(start <= union) & (union <= end)]
    return inside if len(inside) <= MAX_POINTS else np.linspace(start, end, MAX_POINTS)
