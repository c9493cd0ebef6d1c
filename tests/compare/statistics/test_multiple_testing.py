"""Verdicts and intervals of many differences, corrected together."""

import numpy as np
import pytest

from asr.compare.statistics.estimate import Estimate
from asr.compare.statistics.multiple_testing import holm, simultaneous

ALPHA = 0.05


def estimates(means):
    """Differences in per mille, whose standard error is one per mille over five seeds."""
    return [Estimate(np.asarray(mean) / 1000, np.asarray(1e-6), np.asarray(0.0), 5, 4, 40) for mean in means]


def test_holm_by_hand():
    assert holm(np.array([0.04, 0.01, 0.03])).tolist() == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]


def test_one_difference_alone_is_not_corrected():
    (one,) = estimates([3.0])
    found = simultaneous([one], ALPHA)
    assert found.adjusted == pytest.approx(one.p_value())
    assert (found.low, found.high) == (one.mean - one.half_width(ALPHA), one.mean + one.half_width(ALPHA))


def test_each_step_is_halfway_between_bonferroni_and_holm():
    given = estimates([9.0, 5.0, 2.0])
    p = np.array([one.p_value() for one in given])
    # for 1, 2 and 3 that are still open, of 3
    levels = [(1 / 3 + 1 / 3) / 2, (1 / 3 + 1 / 2) / 2, (1 / 3 + 1) / 2]
    assert simultaneous(given, ALPHA).adjusted == pytest.approx(p / levels)


def test_an_interval_ends_at_0_where_only_the_verdict_excludes_it():
    """The second of three p-values is between what its verdict and its interval ask for."""
    given = estimates([30.0, -4.3, 0.5])
    found = simultaneous(given, ALPHA)
    assert (found.adjusted <= ALPHA).tolist() == [True, True, False]
    assert abs(given[1].mean) < given[1].half_width(ALPHA / 6)
    assert found.high[1] == 0
    # the third alone is open, the others are not alone
    assert found.high[2] - given[2].mean == pytest.approx(given[2].half_width(ALPHA / 3))
    assert found.high[0] - given[0].mean == pytest.approx(given[0].half_width(ALPHA / 6))


def test_an_interval_contains_0_inside_if_and_only_if_the_systems_do_not_differ_significantly():
    means = np.random.default_rng(0).normal(0, 4, (6, 3000))
    found = simultaneous(estimates(means), ALPHA)
    apart = found.adjusted <= ALPHA
    assert 0.1 < apart.mean() < 0.9
    assert ((found.low < 0) & (found.high > 0)).tolist() == (~apart).tolist()
