"""When runs come to a WER, how far they are at equal time, and mean curves of seeds."""

import dataclasses
import math

import numpy as np
import pytest

from tests.werdict.made_comparisons import run_of
from werdict.runs import Curve
from werdict.statistics.times import MAX_POINTS, DevCurve, equal_time, running_mean, seed_curves, times_to_target


def curve(*points) -> DevCurve:
    times, wers = zip((0.0, 1.0), *points, strict=True)
    return DevCurve(np.array(times), np.array(wers))


def run(system, seed, *points, num_updates=400, s_per_update=0.5):
    """Validated at (update, WER), and trained until the end."""
    updates, wers = zip(*points, strict=True)
    ends = (1, num_updates)
    curves = {
        "val/wer": Curve(updates, tuple(s_per_update * update for update in updates), wers),
        "train/loss": Curve(ends, tuple(s_per_update * end for end in ends), (5.0, 1.0)),
    }
    return run_of(system, seed, curves=curves, num_updates=num_updates)


@pytest.mark.parametrize(
    ("target", "time"),
    [
        (0.4, 100),
        (0.2, 150),  # the middle in logarithms, of WERs it would be 133
        (0.1, 200),
        (0.02, 260),  # a line of WERs leads to 0
        (0.8, 100 * math.log(0.8) / math.log(0.4)),  # from 100 % at the start
    ],
)
def test_the_time_to_a_target_lies_between_two_validations(target, time):
    falling = curve((100, 0.4), (200, 0.1), (275, 0.0), (300, 0.2))
    assert falling.first_time(target) == pytest.approx(time)
    assert falling.wer_at(time) == pytest.approx(target)


def test_a_target_may_be_one_of_the_loss_on_dev():
    def trained(system, seed, *losses):
        points = Curve((100, 200, 400), (50.0, 100.0, 200.0), losses)
        return dataclasses.replace(run(system, seed, (400, 0.9)), curves={"val/dev/loss": points})

    runs = [
        *(trained("fast", seed, 0.5, 0.2, 0.1) for seed in (1, 2, 3)),  # there before the first validation ended
        *(trained("late", seed, 4.0, 2.0, 0.5) for seed in (1, 2, 3)),
        *(trained("misses", seed, 4.0, 2.0, 1.01) for seed in (1, 2, 3)),
    ]
    found = times_to_target(runs, 1.0, "updates", 0.05, "late", metric="val/dev/loss")
    assert {row.system: round(row.mean) for row in found.rows} == {"fast": 100, "late": 300, "misses": 400}
    assert {row.system: row.num_reached for row in found.rows} == {"fast": 3, "late": 3, "misses": 0}


def test_the_first_crossing_counts_and_a_target_that_is_missed_is_never():
    up_and_down = curve((100, 1.4), (200, 0.3), (300, 0.9), (400, 0.2))
    assert up_and_down.first_time(0.5) < 200
    assert up_and_down.first_time(0.1) == math.inf


def test_the_mean_wer_is_the_area_under_the_curve():
    steady = curve((100, 1.0), (300, 0.2))
    assert steady.mean_until(300) == pytest.approx((100 + 200 * 0.6) / 300)
    assert steady.mean_until(400) == pytest.approx((100 + 200 * 0.6 + 100 * 0.2) / 400)
    assert steady.mean_until(50) == pytest.approx(1.0)


def after(runs, seconds=None, baseline="adamw", scale="points"):
    return equal_time(runs, 0.05, scale, seconds, baseline)


def four_systems():
    """The baseline is at 10 % after 200 updates, a fast one after 100; one reaches it once, and two never."""
    shapes = {"adamw": (200, 0.1), "fast": (100, 0.1), "slow": (400, 0.12), "stuck": (400, 0.9)}
    runs = [
        run(name, seed, (at + seed, wer), (400, wer * 0.9 if name != "stuck" else 1.2))
        for name, (at, wer) in shapes.items()
        for seed in (1, 2, 3)
    ]
    return [one for one in runs if one.system != "slow"] + [
        run("slow", 1, (200, 0.3), (400, 0.08)),
        run("slow", 2, (200, 0.3), (400, 0.12)),
        run("slow", 3, (200, 0.3), (400, 0.15)),
    ]


def test_runs_that_never_arrive_count_with_the_whole_budget():
    found = times_to_target(four_systems(), 0.1, "updates", 0.05, "adamw", [("stuck", 4), ("adamw", 9), ("other", 1)])
    rows = {row.system: row for row in found.rows}
    assert [*rows] == ["fast", "adamw", "slow", "stuck"]
    assert (found.budget, found.reference) == (400, "adamw")
    assert [(row.num_reached, row.num_runs) for row in found.rows] == [(3, 3), (3, 4), (1, 3), (0, 4)]
    arrived = 200 + 200 * math.log(0.3 / 0.1) / math.log(0.3 / 0.08)
    assert rows["slow"].mean == pytest.approx((arrived * 400 * 400) ** (1 / 3))
    assert rows["stuck"].mean == pytest.approx(400)
    assert rows["fast"].contrast.value == pytest.approx((101 * 102 * 103 / (201 * 202 * 203)) ** (1 / 3))
    assert rows["fast"].contrast.low < rows["fast"].contrast.value < rows["fast"].contrast.high < 1
    assert rows["fast"].contrast.verdict == "better"
    assert rows["stuck"].contrast.verdict == "worse"


def test_the_set_of_the_best_has_no_system_that_is_slower_or_never_there():
    found = times_to_target(four_systems(), 0.1, "updates", 0.05, "adamw")
    assert [row.system for row in found.rows if row.may_be_best] == ["fast"]
    alike = [dataclasses.replace(one, system="other") for one in four_systems() if one.system == "fast"]
    found = times_to_target([*four_systems(), *alike], 0.1, "updates", 0.05, "adamw")
    assert {row.system for row in found.rows if row.may_be_best} == {"fast", "other"}


def test_seconds_count_what_an_update_costs():
    runs = [run("adamw", seed, (200, 0.1 + seed / 100), (400, 0.05)) for seed in (1, 2, 3)]
    runs += [run("eve", seed, (200, 0.1 + seed / 100), (400, 0.05), s_per_update=1.0) for seed in (1, 2, 3)]
    by_update, by_time = (times_to_target(runs, 0.2, axis, 0.05, "adamw").rows for axis in ("updates", "seconds"))
    assert by_update[1].contrast.value == pytest.approx(1)
    assert by_update[1].contrast.p_adjusted == pytest.approx(1)
    assert by_time[1].system == "eve"
    # the budget is that of the fast runs: 200 s
    assert by_time[1].contrast.value == pytest.approx(2)
    late = times_to_target(runs, 0.06, "seconds", 0.05, "adamw")
    assert (late.budget, late.rows[1].num_reached, late.rows[1].mean) == (200, 0, pytest.approx(200))


def test_systems_that_never_arrive_are_not_compared_with_each_other():
    runs = [one for one in four_systems() if one.system != "slow"]
    found = times_to_target(runs, 0.095, "updates", 0.05, "stuck")
    rows = {row.system: row for row in found.rows}
    assert rows["adamw"].contrast.verdict == "better"
    runs += [run("silent", seed, (200, 1.1), (400, 1.2)) for seed in (1, 2, 3)]
    found = times_to_target(runs, 0.095, "updates", 0.05, "stuck")
    assert {row.system: row.contrast for row in found.rows}["silent"] is None


def test_a_run_that_was_stopped_early_does_not_shorten_the_budget():
    stopped = dataclasses.replace(run("eve", 1, (50, 1.0), num_updates=50), cost=run_of("eve", 1, num_updates=400).cost)
    found = times_to_target([*four_systems(), stopped], 0.1, "updates", 0.05, "adamw")
    assert found.budget == 400
    assert {row.system: row.mean for row in found.rows}["eve"] == pytest.approx(400)


def test_a_shorter_budget_of_some_runs_is_that_of_all():
    runs = [*four_systems(), run("short", 1, (50, 0.3), (150, 0.1), num_updates=150)]
    found = times_to_target(runs, 0.1, "updates", 0.05, "adamw")
    rows = {row.system: row for row in found.rows}
    assert (found.budget, rows["short"].mean, rows["adamw"].num_reached) == (150, pytest.approx(150), 0)
    assert rows["short"].contrast.verdict == "one seed: not compared"


def test_at_equal_time_the_cheaper_update_is_further():
    runs = [run("adamw", seed, (200, 0.3 + seed / 100), (400, 0.1)) for seed in (1, 2, 3)]
    runs += [run("eve", seed, (200, 0.3 + seed / 100), (400, 0.1), s_per_update=1.01) for seed in (1, 2, 3)]
    found = after(runs)
    # 200 s are 3.33 min, rounded down to 3.3
    assert (found.seconds, found.num_earlier, found.reference) == (pytest.approx(198), 0, "adamw")
    first, second = found.rows
    assert [row.system for row in found.rows] == ["adamw", "eve"]
    assert first.wer_mean < second.wer_mean
    assert second.contrast.value == pytest.approx(second.wer_mean - first.wer_mean)
    assert second.contrast.low <= second.contrast.value <= second.contrast.high
    assert (first.area, first.area_sd) == (pytest.approx(second.area), pytest.approx(second.area_sd))
    assert after(runs, seconds=300).num_earlier == 3
    assert after(runs, seconds=300, baseline="eve").reference == "eve"
    assert after(runs, seconds=300).rows[0].wer_mean == pytest.approx(0.1)


def test_a_run_that_never_learned_stays_in_the_mean_and_counts_as_100_percent_in_a_ratio():
    runs = [run("eve", seed, (200, wer), (400, wer / 2)) for seed, wer in ((1, 0.3), (2, 0.4), (3, 2.2))]
    runs += [run("adamw", seed, (200, 0.2), (400, 0.1)) for seed in (1, 2, 3)]
    rows = {scale: {row.system: row for row in after(runs, 200, scale=scale).rows} for scale in ("points", "ratio")}
    assert rows["points"]["eve"].wer_mean == pytest.approx((0.15 + 0.2 + 1.1) / 3)
    assert rows["points"]["eve"].contrast.value == pytest.approx((0.15 + 0.2 + 1.1) / 3 - 0.1)
    assert rows["ratio"]["eve"].contrast.value == pytest.approx((0.15 * 0.2 * 1.0) ** (1 / 3) / 0.1)
    assert rows["ratio"]["eve"].num_runs == 3


def test_systems_that_never_learned_do_not_differ_at_equal_time():
    runs = [run(name, seed, (200, 1.0), (400, 1.0)) for name in ("adamw", "eve") for seed in (1, 2)]
    found = after(runs).rows[1].contrast
    assert (found.value, found.p_adjusted, found.verdict) == (0, 1, "cannot distinguish")


def test_without_times_or_validations_there_is_nothing():
    without_clock = run_of("eve", 1, curves={"val/wer": Curve((50, 100), (), (0.5, 0.1))})
    assert times_to_target([without_clock], 0.2, "updates", 0.05, "adamw").rows[0].num_reached == 1
    assert times_to_target([without_clock], 0.2, "seconds", 0.05, "adamw") is None
    assert after([without_clock, run("adamw", 1, (100, 0.1))]) is None
    assert times_to_target([run_of("eve", 1)], 0.2, "updates", 0.05, "adamw") is None


def logged(updates, values, seconds=()) -> Curve:
    return Curve(tuple(updates), tuple(seconds), tuple(values))


def test_seeds_are_interpolated_between_their_points_and_never_beyond():
    found = seed_curves([logged([10, 30, 50], [4, 2, 1]), logged([20, 40, 60], [4, 2, 0])], "updates")
    assert found.grid.tolist() == [20, 30, 40, 50]
    assert found.mean.tolist() == [3.5, 2.5, 1.75, 1.0]
    assert found.low.tolist() == [3, 2, 1.5, 1]
    assert found.high.tolist() == [4, 3, 2, 1]
    assert found.num_seeds == 2


def test_time_is_taken_from_the_seconds():
    slow, fast = logged([1, 2], [8, 4], [10, 30]), logged([1, 2], [6, 2], [10, 20])
    found = seed_curves([slow, fast], "seconds")
    assert found.grid.tolist() == [10, 20]
    assert found.mean.tolist() == [7, 4]


def test_a_curve_without_seconds_has_no_place_in_time():
    with_clock = logged([1, 2], [8, 4], [10, 30])
    assert seed_curves([logged([1, 2], [3, 4])], "seconds") is None
    assert seed_curves([logged([1, 2], [3, 4]), with_clock], "seconds").num_seeds == 1


@pytest.mark.parametrize(
    "curves", [[], [logged([], [])], [logged([1, 2], [math.nan, math.inf])], [logged([1, 2], [1, 1]), logged([3], [1])]]
)
def test_nothing_in_common_is_no_curve(curves):
    assert seed_curves(curves, "updates") is None


def test_values_that_are_not_finite_and_steps_back_are_passed_over():
    found = seed_curves([logged([1, 2, 3, 3, 2, 4], [1, math.nan, 3, 7, 9, 4])], "updates")
    assert found.grid.tolist() == [1, 3, 4]
    assert found.mean.tolist() == [1, 3, 4]


def test_a_single_point_is_a_curve():
    assert seed_curves([logged([5], [0.5])], "updates").mean.tolist() == [0.5]


def test_many_points_are_thinned_evenly():
    updates = range(1, 2002)
    found = seed_curves([logged(updates, updates)], "updates")
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
