"""The difference that a comparison can find, against the exact distribution where there is one."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from werdict.statistics.estimate import Estimate
from werdict.statistics.judge import detectable, seeds_to_find

SEED_SD = 0.01


def pair(num_seeds, mean=0.0, test_variance=0.0, units=1000.0):
    """Two systems that vary alike, with a paired t-test."""
    variance = 2 * SEED_SD**2 / num_seeds
    return Estimate(np.asarray(mean), np.asarray(variance), np.asarray(test_variance), num_seeds, num_seeds - 1, units)


@pytest.mark.parametrize("alpha", [0.05, 0.025 / 9])
@pytest.mark.parametrize("num_seeds", [3, 5, 20])
def test_where_only_seeds_vary_it_is_students_noncentral_t(num_seeds, alpha):
    def missing(difference):
        shift = difference / np.sqrt(2 * SEED_SD**2 / num_seeds)
        return stats.nct.sf(stats.t.isf(alpha / 2, num_seeds - 1), num_seeds - 1, shift) - 0.8

    exact = optimize.brentq(missing, 1e-4, 0.3)
    assert detectable(pair(num_seeds), alpha) == pytest.approx(exact, rel=0.02)


def test_few_speakers_and_a_level_that_is_hardly_reached_find_nothing():
    assert detectable(pair(3, test_variance=0.01, units=1.1), 0.05) == np.inf


def test_the_seeds_that_are_needed_find_the_difference_and_one_less_does_not():
    given = pair(3, mean=-0.015)
    needed = seeds_to_find(given, 0.05)
    assert detectable(pair(needed), 0.05) <= 0.015 < detectable(pair(needed - 1), 0.05)
    assert seeds_to_find(replace(given, mean=np.asarray(1.0)), 0.05) == 4  # more than there are
    assert seeds_to_find(replace(given, mean=np.asarray(0.0)), 0.05) is None
    assert seeds_to_find(pair(3, mean=0.015, test_variance=0.01**2), 0.05) is None
