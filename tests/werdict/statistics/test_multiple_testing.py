"""Verdicts and intervals of many differences, corrected together."""

import numpy as np
import pytest
from scipy import stats

from werdict.statistics.contrasts import decide, holm, may_be_best
from werdict.statistics.estimate import Estimate

ALPHA = 0.05


def estimates(means):
    """Differences in per mille, whose standard error is one per mille over five seeds."""
    return [Estimate(np.asarray(mean) / 1000, np.asarray(1e-6), np.asarray(0.0), 5, 4, 40) for mean in means]


def test_holm_by_hand():
    assert holm(np.array([0.04, 0.01, 0.03])).tolist() == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]


def test_one_difference_alone_is_not_corrected():
    (one,) = estimates([3.0])
    found = decide([one], ALPHA)
    assert found.adjusted == pytest.approx(one.p_value())
    assert (found.low, found.high) == one.interval(ALPHA)


def test_verdicts_are_those_of_holm_and_intervals_have_an_equal_share_of_the_level():
    means = [9.0, 5.0, 0.3]
    found = decide(estimates(means), ALPHA)
    p = 2 * stats.t.sf(means, 4)
    assert found.p_values == pytest.approx(p)
    assert found.adjusted == pytest.approx([3 * p[0], 2 * p[1], p[2]])
    half = stats.t.isf(ALPHA / 6, 4) / 1000
    assert found.high == pytest.approx(np.array(means) / 1000 + half)


def test_an_interval_ends_at_0_where_holm_decides_and_bonferroni_does_not():
    given = estimates([30.0, -3.9, 0.5])
    found = decide(given, ALPHA)
    assert (found.adjusted <= ALPHA).tolist() == [True, True, False]
    assert abs(given[1].mean) < given[1].half_width(ALPHA / 3)
    assert found.high[1] == 0
    assert found.low[1] == given[1].mean - given[1].half_width(ALPHA / 3)


def test_an_interval_contains_0_inside_if_and_only_if_the_systems_do_not_differ_significantly():
    means = np.random.default_rng(0).normal(0, 4, (6, 3000))
    found = decide(estimates(means), ALPHA)
    apart = found.adjusted <= ALPHA
    assert 0.1 < apart.mean() < 0.9
    assert ((found.low < 0) & (found.high > 0)).tolist() == (~apart).tolist()


def test_what_is_worse_than_any_other_is_not_best_at_a_one_sided_level():
    """Of three, each is tested against two others, at 2.5 %."""
    limit = 1000 * float(estimates([0.0])[0].half_width(ALPHA))
    just, not_quite = limit + 0.01, limit - 0.01
    against = {"a": estimates([-just, -9.0]), "b": estimates([just, -1.0]), "c": estimates([9.0, 1.0])}
    assert may_be_best(against, ALPHA) == {"a": True, "b": False, "c": False}
    against["b"] = estimates([not_quite, -1.0])
    assert may_be_best(against, ALPHA)["b"]
    assert may_be_best({"alone": []}, ALPHA) == {"alone": True}
