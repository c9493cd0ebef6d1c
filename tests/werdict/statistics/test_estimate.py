"""A mean over seeds and speakers, and its interval, by hand; simulations are in test_check_statistics."""

import math

import numpy as np
import pytest
from scipy import stats

from werdict.statistics.estimate import Estimate, effective_number, estimate


def test_two_seeds_and_two_speakers_by_hand():
    """WERs .15 and .05. Without the first speaker .1 and 0, without the second .2 and .1: moves of .05."""
    found = estimate(np.array([[4, 2], [2, 0]]), np.array([20, 20]))
    assert found.mean == pytest.approx(0.1)
    assert found.seed_variance == pytest.approx(0.005 / 2)
    assert found.test_variance == pytest.approx((0.05 * 0.05 + 0.05 * 0.05) / 2)
    # Student's t with one degree of freedom is Cauchy's distribution: half of it lies between -1 and 1
    assert found.half_width(0.5) == pytest.approx(math.sqrt(0.0025 + 0.0025))
    assert found.p_value() == pytest.approx(1 - 2 / math.pi * math.atan(0.1 / math.sqrt(0.005)), rel=1e-6)


def test_speakers_of_different_sizes_are_left_out_one_by_one():
    errors, words = np.array([7, 2, 0, 5]), np.array([60, 10, 20, 10])
    found = estimate(errors[None], words)
    moved = [np.delete(errors, u).sum() / np.delete(words, u).sum() - 0.14 for u in range(4)]
    assert found.test_variance == pytest.approx(3 / 4 * np.square(moved).sum())
    assert found.effective_units == pytest.approx(100**2 / (3600 + 100 + 400 + 100))
    assert effective_number(np.full(7, 30)) == pytest.approx(7)


def test_many_estimates_at_once_are_those_of_each_alone():
    errors = np.random.default_rng(0).integers(-3, 9, (4, 3, 5))
    words = np.array([10, 20, 5, 0, 9])
    together = estimate(errors, words)
    for index, one in enumerate(errors):
        alone = estimate(one, words)
        for name in ("mean", "seed_variance", "test_variance"):
            assert getattr(together, name)[index] == pytest.approx(getattr(alone, name))
        assert together.p_value()[index] == pytest.approx(alone.p_value())


def test_where_only_seeds_vary_it_is_the_paired_t_test():
    differences = np.array([0.05, 0.02, 0.06, 0.03, 0.07])
    found = Estimate(differences.mean(), differences.var(ddof=1) / 5, np.array(0.0), 5, 4, 40)
    assert found.p_value() == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-6)


def test_the_p_value_is_where_the_interval_ends_at_zero():
    found = estimate(np.array([[4, 2, 5], [2, 0, 2], [3, 3, 3]]), np.array([10, 30, 20]))
    assert found.half_width(found.p_value()) == pytest.approx(abs(found.mean))


def test_no_difference_has_p_one_and_is_not_certain():
    found = estimate(np.zeros((3, 4), np.int64), np.full(4, 25))
    assert found.p_value() == pytest.approx(1)
    assert found.half_width(0.05) >= 1 / 100  # one word of the set


def test_seeds_that_agree_by_chance_are_not_certainty():
    """Two seeds, twice three words of difference: rounding to words alone allows as much."""
    found = estimate(np.array([[1, 1, 1, 0], [0, 1, 1, 1]]), np.full(4, 25))
    assert found.p_value() > 0.05


def test_one_seed_speaks_of_the_test_set_alone():
    errors, words = np.array([[4, 2, 7]]), np.array([10, 30, 20])
    found = estimate(errors, words)
    moves = (errors[0] - errors.sum() / 60 * words) / (60 - words)
    freedom = 60**2 / 1400 - 1
    assert found.half_width(0.05) == pytest.approx(stats.t.isf(0.025, freedom) * math.sqrt(2 / 3 * (moves**2).sum()))


def test_the_test_sets_part_is_what_drawing_speakers_for_all_seeds_at_once_gives():
    rng = np.random.default_rng(0)
    words = rng.integers(90, 110, 60)
    speakers = rng.normal(0, 0.05, 60)
    errors = np.stack([np.round(words * (speakers + rng.normal(0.1, 0.05, 60))).astype(int) for _ in range(4)])
    drawn = rng.integers(60, size=(20_000, 60))
    rates = errors[:, drawn].sum(-1) / words[drawn].sum(-1)
    covariances = np.cov(rates)
    between_seeds = (covariances.sum() - np.trace(covariances)) / 12
    assert estimate(errors, words).test_variance == pytest.approx(between_seeds, rel=0.05)


def test_four_speakers_are_not_certain_of_a_difference_that_is_equal_on_them_by_chance():
    """What is left after the randomness of single runs is negative here; of up to twelve speakers the whole stays."""
    errors, words = np.array([[2, 0, 1, 1], [0, 2, 1, 1], [1, 1, 2, 0]]), np.full(4, 25)
    moves = (errors.mean(0) - 1) / 75
    assert estimate(errors, words).test_variance == pytest.approx(max(3 / 4 * np.square(moves).sum(), 1 / 100**2))


@pytest.mark.parametrize(("num_speakers", "share"), [(8, 1), (12, 1), (24, 1 / 2), (48, 1 / 4)])
def test_the_more_speakers_the_less_stays_of_a_variance_that_seeds_do_not_share(num_speakers, share):
    """Each seed errs more on some speakers and less on others, and the other seed on none of these."""
    errors = np.tile([[2, 0, 1, 1], [1, 1, 2, 0]], num_speakers // 4)
    moves = (errors.mean(0) - 1) / (25 * (num_speakers - 1))
    whole = (num_speakers - 1) / num_speakers * np.square(moves).sum()
    assert estimate(errors, np.full(num_speakers, 25)).test_variance == pytest.approx(share * whole)
