"""Mean and spread over seeds, only where all of them were measured."""

import math

import numpy as np
import pytest

from werdict.runs import Curve
from werdict.statistics.times import MAX_POINTS, running_mean, seed_curves


def curve(updates, values, seconds=()) -> Curve:
    return Curve(tuple(updates), tuple(seconds), tuple(values))


def test_seeds_are_interpolated_between_their_points_and_never_beyond():
    found = seed_curves([curve([10, 30, 50], [4, 2, 1]), curve([20, 40, 60], [4, 2, 0])], "updates")
    assert found.grid.tolist() == [20, 30, 40, 50]
    assert found.mean.tolist() == [3.5, 2.5, 1.75, 1.0]
    assert found.low.tolist() == [3, 2, 1.5, 1]
    assert found.high.tolist() == [4, 3, 2, 1]
    assert found.num_seeds == 2


def test_time_is_taken_from_the_seconds():
    slow, fast = curve([1, 2], [8, 4], [10, 30]), curve([1, 2], [6, 2], [10, 20])
    found = seed_curves([slow, fast], "seconds")
    assert found.grid.tolist() == [10, 20]
    assert found.mean.tolist() == [7, 4]


def test_a_curve_without_seconds_has_no_place_in_time():
    with_clock = curve([1, 2], [8, 4], [10, 30])
    assert seed_curves([curve([1, 2], [3, 4])], "seconds") is None
    assert seed_curves([curve([1, 2], [3, 4]), with_clock], "seconds").num_seeds == 1


@pytest.mark.parametrize(
    "curves", [[], [curve([], [])], [curve([1, 2], [math.nan, math.inf])], [curve([1, 2], [1, 1]), curve([3], [1])]]
)
def test_nothing_in_common_is_no_curve(curves):
    assert seed_curves(curves, "updates") is None


def test_values_that_are_not_finite_and_steps_back_are_passed_over():
    found = seed_curves([curve([1, 2, 3, 3, 2, 4], [1, math.nan, 3, 7, 9, 4])], "updates")
    assert found.grid.tolist() == [1, 3, 4]
    assert found.mean.tolist() == [1, 3, 4]


def test_a_single_point_is_a_curve():
    assert seed_curves([curve([5], [0.5])], "updates").mean.tolist() == [0.5]


def test_many_points_are_thinned_evenly():
    updates = range(1, 2002)
    found = seed_curves([curve(updates, updates)], "updates")
    assert len(found.grid) == MAX_POINTS
    assert (found.grid[0], found.grid[-1]) == (1, 2001)
    np.testing.assert_allclose(found.mean, found.grid)


def test_a_running_mean_takes_a_fiftieth_of_the_points_and_fewer_near_the_ends():
    values = np.zeros(200)
    values[[0, 100]] = 5.0
    mean = running_mean(values)
    assert mean[98:103].tolist() == pytest.approx([1.0] * 5)  # two neighbors on each side
    assert mean[[97, 103]].tolist() == pytest.approx([0.0] * 2)
    assert mean[:3].tolist() == pytest.approx([5.0, 5 / 3, 1.0])


def test_a_short_curve_is_not_smoothed():
    values = np.array([3.0, 1.0, 2.0])
    np.testing.assert_allclose(running_mean(values), values)
