"""Differences of systems over seeds, and what their variances borrow; simulations are in test_check_statistics."""

import numpy as np
import pytest
from scipy import stats

from werdict.statistics.contrasts import FOCAL_SHARE, MOST_SHARE, MOST_TIMES_TYPICAL, Contrasts


def made(num_systems: int, num_seeds: int, num: int = 2000, factor: float = 1.0) -> np.ndarray:
    """Values of variance 1; the first system's seeds vary more by a factor."""
    values = np.random.default_rng(0).normal(size=(num, num_systems, num_seeds))
    values[:, 0] *= factor
    return values


@pytest.mark.parametrize("num_seeds", [2, 3, 8])
def test_two_systems_have_the_paired_t_test(num_seeds):
    values = made(2, num_seeds, num=20)
    found, expected = Contrasts(values, 1e-9).estimate(1, 0), stats.ttest_rel(values[:, 1], values[:, 0], axis=-1)
    assert found.p_value() == pytest.approx(expected.pvalue)
    assert found.interval(0.1) == tuple(pytest.approx(end) for end in expected.confidence_interval(0.9))


def test_speakers_who_hardly_differ_leave_the_paired_t_test():
    values = made(2, 5, num=20)
    moves = np.random.default_rng(1).normal(0, 1e-6, (20, 2, 5, 30))
    found = Contrasts(values, 1e-9, moves, 30.0).estimate(0, 1)
    assert found.p_value() == pytest.approx(stats.ttest_rel(values[:, 0], values[:, 1], axis=-1).pvalue, rel=1e-4)


@pytest.mark.parametrize(("num_systems", "num_seeds"), [(2, 5), (3, 3), (10, 3), (10, 10)])
def test_variances_are_right_on_average(num_systems, num_seeds):
    own = Contrasts(made(num_systems, num_seeds, num=4000), 1e-9).own
    assert own.mean() == pytest.approx(1, abs=0.06)


def test_an_unstable_system_does_not_raise_the_variances_of_others():
    own = Contrasts(made(8, 5, factor=10.0), 1e-9).own
    assert own[:, 0].mean() == pytest.approx(100, rel=0.1)
    assert own[:, 1:].mean() == pytest.approx(1, rel=0.25)


def test_a_common_part_of_each_seed_changes_nothing():
    values = made(5, 4)
    shifted = values + 10 * np.random.default_rng(1).normal(size=(len(values), 1, 4))
    one, other = (Contrasts(each, 1e-9).estimate(2, 0) for each in (values, shifted))
    assert one.mean == pytest.approx(other.mean)
    assert one.seed_variance == pytest.approx(other.seed_variance)
    assert one.seed_freedom == pytest.approx(other.seed_freedom)


@pytest.mark.parametrize(("num_systems", "num_seeds"), [(10, 3), (2, 10)])
def test_with_three_seeds_or_without_a_third_system_nothing_is_borrowed(num_systems, num_seeds):
    contrasts = Contrasts(made(num_systems, num_seeds), 1e-9)
    for noise in contrasts.noise:
        assert noise.variance == pytest.approx(contrasts.own)
        assert np.all(noise.freedom == num_seeds - 1)


def test_what_is_borrowed_is_bounded_and_less_for_the_focal_system():
    focal, other = Contrasts(made(10, 5), 1e-9).noise
    most = MOST_SHARE * 8 * 4
    assert other.freedom.max() <= 4 + most + 1e-9
    assert focal.freedom.max() <= 4 + FOCAL_SHARE * most + 1e-9
    assert np.median(other.freedom) > np.median(focal.freedom) > 4


def test_a_variance_of_many_times_the_typical_one_stands_alone():
    contrasts = Contrasts(made(8, 5, factor=10.0), 1e-9)
    alone = contrasts.own[:, 0] > 3 * MOST_TIMES_TYPICAL * np.median(contrasts.own, -1)
    assert alone.mean() > 0.9
    for noise in contrasts.noise:
        assert noise.variance[alone, 0] == pytest.approx(contrasts.own[alone, 0])
        assert np.all(noise.freedom[alone, 0] == 4)


def test_variances_are_drawn_both_ways():
    contrasts = Contrasts(made(10, 5), 1e-9)
    _, other = contrasts.noise
    assert 0.1 < np.mean(other.variance < contrasts.own) < 0.9


def test_systems_with_one_value_for_all_seeds_tell_nothing_of_the_others():
    """Three runs that all failed are not three systems that vary little; 4 of 100 tables were wrong at 97.5 %."""
    values = made(6, 5)
    values[:, 3:] = 5.0
    found, alone = Contrasts(values, 1e-9), Contrasts(values[:, :3], 1e-9)
    assert found.own[:, :3].mean() == pytest.approx(1, abs=0.06)
    assert found.noise[1].freedom[:, :3].max() == pytest.approx(alone.noise[1].freedom.max())
    widths = [each.estimate(1, 0).half_width(0.05).mean() for each in (found, alone)]
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def test_values_that_agree_may_still_differ_by_their_resolution():
    found = Contrasts(np.zeros((1, 3, 2)), 0.06).estimate(1, 0)
    assert found.seed_variance == pytest.approx(2 * 0.06**2 / 12 / 2)
    assert found.p_value() == pytest.approx(1)


def test_one_seed_speaks_of_the_test_set_alone():
    moves = np.random.default_rng(0).normal(0, 0.1, (1, 3, 1, 6))
    found = Contrasts(np.array([[[1.0], [2.0], [4.0]]]), 1e-9, moves, 6.0).estimate(2, 0)
    jackknife = 5 / 6 * np.square(moves[0, 2, 0] - moves[0, 0, 0]).sum()
    assert found.half_width(0.05) == pytest.approx(stats.t.isf(0.025, 5) * np.sqrt(jackknife))


def test_many_tables_at_once_are_those_of_each_alone():
    values, moves = made(4, 5, num=3), np.random.default_rng(1).normal(size=(3, 4, 5, 7))
    together = Contrasts(values, 1e-3, moves, 7.0).estimate(3, 1)
    for place in range(3):
        alone = Contrasts(values[place], 1e-3, moves[place], 7.0).estimate(3, 1)
        for name in ("mean", "seed_variance", "test_variance", "seed_freedom"):
            assert getattr(together, name)[place] == pytest.approx(float(getattr(alone, name)))
