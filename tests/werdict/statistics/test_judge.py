"""The two questions of a comparison, on numbers of named systems and seeds."""

import numpy as np
import pytest
from scipy import stats

from werdict.statistics.judge import Judge

FIRST, SECOND = (1.0, 3.0, 2.0, 6.0), (2.0, 5.0, 4.0, 6.5)


def table(*rows):
    return {name: dict(enumerate(row)) for name, row in zip("abcdefgh", rows, strict=False)}


def judge(values, alpha=0.05, scale="points", **options):
    return Judge(values, dict.fromkeys(values, options.pop("resolution", 1e-6)), alpha, scale, **options)


@pytest.mark.parametrize(("scale", "shown"), [("points", lambda value: value), ("ratio", np.exp)])
def test_two_systems_have_the_paired_t_test_and_its_interval(scale, shown):
    found = judge(table(FIRST, SECOND), 0.1, scale).from_baseline("b")["a"]
    expected = stats.ttest_rel(FIRST, SECOND)
    assert found.p_adjusted == found.p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(shown(end) for end in expected.confidence_interval(0.9)))
    assert (found.verdict, found.value, found.seeds_needed) == ("better", pytest.approx(shown(-1.375)), None)
    back = judge(table(FIRST, SECOND), 0.1).from_baseline("a")["b"]
    assert (back.value, back.verdict) == (1.375, "worse")


def test_each_question_has_its_own_level():
    """One pair of two: the baseline's question is two-sided, that of the best one-sided."""
    values = table(FIRST, SECOND)
    p_value = stats.ttest_rel(FIRST, SECOND).pvalue
    at = judge(values, 0.9 * p_value)
    assert at.from_baseline("b")["a"].verdict == "cannot distinguish"
    assert at.may_be_best() == {"a"}
    assert judge(values, 0.45 * p_value).may_be_best() == {"a", "b"}


def test_only_pairs_with_the_baseline_are_corrected_for():
    rng = np.random.default_rng(0)
    values = table(*(rng.normal(size=5) + mean for mean in (0, 0, 5)))
    every, alone = judge(values, 0.1), judge(values, 0.1).from_baseline("a")
    pairs = {(one.system, one.other): one for one in every.all_pairs()}
    assert [*alone] == ["b", "c"]
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == 3
    assert all(one.value <= 0 for one in pairs.values())
    assert [one.p_value for one in pairs.values()] == sorted(one.p_value for one in pairs.values())
    assert pairs["a", "c"].p_adjusted > alone["c"].p_adjusted
    assert pairs["a", "c"].high - pairs["a", "c"].low > alone["c"].high - alone["c"].low


def test_a_pair_is_compared_on_the_seeds_that_both_have():
    """Only systems with all of these seeds tell how much they vary."""
    values = table(FIRST, SECOND, (0.0, 0.0, 0.0, 0.0))
    values["b"] |= {7: 100.0}
    values["c"] = {seed: 50.0 * seed for seed in (0, 1, 7)}
    found = judge(values).from_baseline("a")
    assert (found["b"].num_seeds, found["c"].num_seeds) == (4, 2)
    assert found["b"].value == pytest.approx(1.375)
    assert found["b"].p_value == pytest.approx(stats.ttest_rel(FIRST, SECOND).pvalue)


def test_what_has_no_seed_in_common_or_one_or_is_unknown_is_not_compared():
    values = {"a": {1: 1.0, 2: 2.0}, "b": {3: 1.0}, "c": {2: 5.0}, "d": {1: 5.0, 2: 5.0}, "e": {1: 5.0, 2: 5.0}}
    given = judge(values, resolution=1e-3, unknown=("d", "e"))
    assert "b" not in given.from_baseline("a")
    assert "e" not in given.from_baseline("d")
    alone = given.from_baseline("a")["c"]
    assert (alone.verdict, alone.value, alone.p_adjusted) == ("one seed: not compared", 3.0, None)
    assert (alone.low, alone.high) == (-np.inf, np.inf)
    assert {"b", "c"} <= given.may_be_best()  # never tested


def test_a_far_system_has_an_interval_and_one_that_is_the_same_does_not_differ():
    found = judge(table((5.0, 6.0, 7.0), (5.0, 6.0, 7.0), (50.0, 54.0, 41.0)), resolution=1e-3).from_baseline("a")
    assert found["b"].p_adjusted == 1
    assert 0 < found["c"].low < found["c"].value < found["c"].high < np.inf


def test_an_open_pair_is_told_what_would_be_found_and_with_how_many_seeds():
    rng = np.random.default_rng(1)
    found = judge(table(*(rng.normal(0.7 * place, 1, 6) for place in range(2))), scale="ratio").from_baseline("a")["b"]
    assert found.verdict == "cannot distinguish"
    assert 0 < found.detectable < 1
    assert found.seeds_needed > 6


def test_single_runs_are_judged_over_speakers():
    moves = {name: {0: shift * np.array([1.0, -1.0, 0.5, -0.5])} for name, shift in (("a", 0.001), ("b", 0.002))}
    given = {"a": {0: 0.1}, "b": {0: 0.2}}
    found = judge(given, moves=moves, effective_units=4.0, has_seeds=False).from_baseline("a")["b"]
    assert (found.verdict, found.seeds_needed) == ("worse", None)
    assert judge(given, moves=moves, effective_units=4.0).from_baseline("a")["b"].verdict == "one seed: not compared"
