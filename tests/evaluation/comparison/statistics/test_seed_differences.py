"""Verdicts over seeds alone, on times of which some are censored."""

import itertools

import numpy as np
import pytest
from scipy import stats

from asr.evaluation.comparison.statistics.moderation import moderated, pooled_variance
from asr.evaluation.comparison.statistics.multiple_testing import holm
from asr.evaluation.comparison.statistics.seed_differences import SeedDifferences, p_value, paired_estimate

R = 2000


def false_families(num_systems: int, num_seeds: int, censored: float, apart: float = 0.0) -> float:
    """Return how often any pair of equal systems is told apart.

    Args:
        num_systems: of which the second half is ``apart`` from the first, and as likely among themselves.
        num_seeds: of each.
        censored: share of all runs that do not arrive.
        apart: difference of the logarithms.
    """
    rng = np.random.default_rng([num_systems, num_seeds, int(100 * censored)])
    times = rng.normal(0, 0.15, (R, num_systems, num_seeds)) + rng.normal(0, 0.1, (R, 1, num_seeds))
    group = np.arange(num_systems) * 2 // num_systems
    times += apart * group[:, None]
    budget = np.quantile(times, 1 - censored)
    late = (times > budget).all(-1)
    logs = np.minimum(times, budget)
    pairs = [*itertools.combinations(range(num_systems), 2)]
    estimates = [paired_estimate(logs[:, a] - logs[:, b], 1e-3) for a, b in pairs]
    p_values = np.stack([p_value(one) for one in moderated(estimates, pooled_variance(logs))], -1)
    compared = np.stack([~(late[:, a] & late[:, b]) for a, b in pairs], -1)
    equal = np.array([apart == 0 or group[a] == group[b] for a, b in pairs])
    families = zip(p_values, compared, strict=True)
    return float(np.mean([(holm(p[used])[equal[used]] <= 0.05).any() for p, used in families]))


@pytest.mark.parametrize("censored", [0.0, 0.1, 0.3, 0.5])
@pytest.mark.parametrize(("num_systems", "num_seeds"), [(2, 3), (2, 10), (4, 3), (8, 3), (8, 10)])
def test_equal_systems_are_told_apart_in_5_of_100_at_most(num_systems, num_seeds, censored):
    standard_error = (0.05 * 0.95 / R) ** 0.5
    assert false_families(num_systems, num_seeds, censored) <= 0.05 + 3 * standard_error


@pytest.mark.parametrize("apart", [-0.5, 0.5])
@pytest.mark.parametrize("censored", [0.3, 0.6])
def test_systems_that_never_arrive_do_not_raise_false_alarms_among_others(censored, apart):
    assert false_families(6, 3, censored, apart) <= 0.065


def table(*rows):
    return {name: dict(enumerate(row)) for name, row in zip("abcdefgh", rows, strict=False)}


def test_two_systems_have_the_paired_t_test_and_its_interval():
    first, second = (1.0, 3.0, 2.0, 6.0), (2.0, 5.0, 4.0, 6.5)
    found = SeedDifferences(table(first, second), 0.9, 1e-6).contrast("a", "b")
    expected = stats.ttest_rel(first, second)
    assert found.p_adjusted == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    assert found.verdict == "better"
    back = SeedDifferences(table(first, second), 0.9, 1e-6).contrast("b", "a")
    assert (back.value, back.low, back.high, back.verdict) == (-found.value, -found.high, -found.low, "worse")


def test_intervals_agree_with_verdicts():
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(100):
        values = table(*(rng.normal(rng.choice([0, 2]), 1, 4) for _ in range(5)))
        differences = SeedDifferences(values, 0.95, 1e-6)
        for pair in itertools.combinations(values, 2):
            found = differences.contrast(*pair)
            verdicts.add(found.verdict)
            inside = found.low < 0 < found.high
            assert inside == (found.verdict == "cannot distinguish")
    assert verdicts == {"better", "worse", "cannot distinguish"}


def test_systems_that_are_the_same_are_not_told_apart():
    same = table(*[(5.0, 6.0, 7.0)] * 3)
    assert SeedDifferences(same, 0.95, 1e-3).contrast("a", "b").p_adjusted == 1


def test_a_difference_of_one_step_in_each_of_two_seeds_is_not_certain():
    assert SeedDifferences(table((0.02, 0.02), (0.0, 0.0)), 0.95, 0.02).contrast("a", "b").p_adjusted > 0.05


def test_what_has_no_seed_in_common_or_is_unknown_is_not_compared():
    values = {"a": {1: 1.0, 2: 2.0}, "b": {3: 1.0}, "c": {2: 5.0}, "d": {1: 5.0, 2: 5.0}, "e": {1: 5.0, 2: 5.0}}
    differences = SeedDifferences(values, 0.95, 1e-3, unknown=("d", "e"))
    assert differences.contrast("a", "b") is None
    assert differences.contrast("d", "e") is None
    assert differences.contrast("a", "d").num_seeds == 2
    alone = differences.contrast("a", "c")
    assert (alone.verdict, alone.value, alone.p_adjusted) == ("one seed: not compared", -3.0, None)
