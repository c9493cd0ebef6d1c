"""Verdicts over seeds alone, on times of which some are censored."""

import itertools

import numpy as np
import pytest
from scipy import stats

from asr.compare.statistics.pairs import SeedDifferences


def test_a_far_system_has_an_interval_although_logarithms_are_above_1():
    found = SeedDifferences(table((0.0, 0.5, 3.0), (10.0, 14.0, 11.0)), 0.95, 1e-6).contrast("a", "b")
    assert 1 < found.high - found.value < np.inf


def test_only_pairs_with_one_system_are_tested_when_asked():
    values = table((0.0, 0.1, 0.2), (1.0, 1.2, 1.1), (2.0, 2.3, 2.1))
    alone, every = (SeedDifferences(values, 0.95, 1e-6, only_with=name) for name in ("a", None))
    assert alone.contrast("a", "b").p_adjusted < every.contrast("a", "b").p_adjusted
    untested = alone.contrast("b", "c")
    assert (untested.verdict, untested.p_adjusted, untested.low) == ("not tested", None, -np.inf)


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


def test_systems_that_are_the_same_do_not_differ_significantly():
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
