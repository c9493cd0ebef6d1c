"""One test for all systems."""

import numpy as np
import pytest
from scipy import stats

from asr.evaluation.comparison.statistics.omnibus import omnibus

WERS = np.array([[0.11, 0.12, 0.13, 0.10], [0.14, 0.15, 0.15, 0.12], [0.12, 0.14, 0.16, 0.11]])


def found_in(wers):
    return omnibus(dict(zip("abc", wers, strict=True)))


def test_friedman_is_scipys_and_f_is_that_of_two_ways():
    found = found_in(WERS)
    assert (found.systems, found.num_seeds) == (("a", "b", "c"), 4)
    assert found.friedman_p == pytest.approx(stats.friedmanchisquare(*WERS).pvalue)
    # of two systems it is the paired t-test
    assert found_in(WERS[[0, 1, 0]]).f_p < 0.05
    pair = WERS[:2]
    residuals = pair - pair.mean(1, keepdims=True) - pair.mean(0) + pair.mean()
    assert 4 * np.square(pair.mean(1) - pair.mean()).sum() / (np.square(residuals).sum() / 3) == pytest.approx(
        stats.ttest_rel(*pair).statistic ** 2
    )


def test_what_a_seed_adds_to_all_systems_changes_nothing():
    shifted, found = found_in(WERS + np.array([0.1, 0.0, 0.3, 0.2])), found_in(WERS)
    assert (shifted.friedman_p, shifted.f_p) == pytest.approx((found.friedman_p, found.f_p))


def test_systems_that_agree_on_every_seed_do_not_differ():
    found = found_in(np.tile(WERS[0], (3, 1)))
    assert (found.friedman_p, found.f_p) == (1.0, 1.0)
