"""The difference that a comparison can find, against the exact distribution where there is one."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from asr.compare.statistics.power import Design

SEED_SD = 0.01
TWO = Design(2 * SEED_SD**2, 0.0, 2, 3, 1000.0, 0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 28])
@pytest.mark.parametrize("num_seeds", [3, 5, 20])
def test_where_only_seeds_vary_it_is_students_noncentral_t(num_seeds, alpha):
    def missing(difference):
        freedom = num_seeds - 1
        shift = difference / np.sqrt(TWO.seed_variance / num_seeds)
        return stats.nct.sf(stats.t.isf(alpha / 2, freedom), freedom, shift) - 0.8

    exact = optimize.brentq(missing, 1e-4, 0.3)
    assert replace(TWO, num_seeds=num_seeds, alpha=alpha).detectable() == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(("num_seeds", "sds"), [(3, 4.6), (4, 3.0), (5, 2.4), (10, 1.4), (20, 0.9)])
def test_the_readmes_table_of_two_systems(num_seeds, sds):
    assert round(replace(TWO, num_seeds=num_seeds).detectable() / SEED_SD, 1) == sds


def test_few_speakers_and_a_level_that_is_hardly_reached_find_nothing():
    assert replace(TWO, test_variance=0.01, effective_units=1.1).detectable() == np.inf


def test_the_seeds_that_are_needed_find_the_difference_and_one_less_does_not():
    needed = TWO.seeds_to_find(-0.015, more_than=3)
    assert replace(TWO, num_seeds=needed).detectable() <= 0.015 < replace(TWO, num_seeds=needed - 1).detectable()
    assert TWO.seeds_to_find(1.0, more_than=3) == 4  # more than there are
    assert TWO.seeds_to_find(1.0, more_than=7) == 8
    assert TWO.seeds_to_find(0.0, more_than=3) is None
    assert replace(TWO, test_variance=0.01**2).seeds_to_find(0.015, more_than=3) is None


@pytest.mark.parametrize(("num_seeds", "sds"), [(3, 8.9), (5, 3.8), (10, 2.1)])
def test_the_readmes_table_of_eight_systems(num_seeds, sds):
    eight = replace(TWO, num_systems=8, num_seeds=num_seeds, alpha=0.05 / 28)
    assert eight.detectable() / SEED_SD == pytest.approx(sds, rel=0.04)
