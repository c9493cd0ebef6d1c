"""Runs that never learned, or failed: counted apart, and as bad as a run that recognizes nothing."""

from dataclasses import replace

import pytest
from scipy import stats

from tests.werdict.made_runs import compare_runs, run_of
from werdict.statistics.judge import reliabilities

GOOD, OTHER, SILENT = (1, 2, 3, 2, 1, 0), (2, 1, 2, 3, 0, 1), (10,) * 6
ADAMW = (OTHER, GOOD, OTHER, GOOD)


def compared(eve=(GOOD, OTHER, GOOD, SILENT), failed=(), depends=()):
    runs = [run_of("adamw", seed, counts) for seed, counts in enumerate(ADAMW)]
    runs += [run_of("eve", seed, counts) for seed, counts in enumerate(eve)]
    for place, known in enumerate(depends):
        runs[place] = replace(runs[place], sets={"test": replace(runs[place].sets["test"], depends_on_audio=known)})
    (found,) = compare_runs(runs, baseline="adamw", failed=failed).sets
    return {row.system: row for row in found.rows}


def test_shares_have_exact_intervals_and_are_tested_against_the_baseline():
    found = reliabilities({"a": (20, 20), "b": (10, 20), "c": (19, 20)}, "a", 0.05)
    exact = [stats.fisher_exact([(20, 0), (some, 20 - some)]).pvalue for some in (10, 19)]
    assert found["a"].p_adjusted is None
    assert found["b"].p_adjusted == pytest.approx(2 * exact[0])
    assert found["c"].p_adjusted == pytest.approx(exact[1])
    ends = stats.binomtest(10, 20).proportion_ci(0.95, method="exact")
    assert (found["b"].low, found["b"].high) == (pytest.approx(ends.low), pytest.approx(ends.high))


def test_a_run_that_never_learned_is_counted_and_stays_in_the_means():
    eve = compared()["eve"]
    assert (eve.seeds, eve.reliability.num_learned, eve.reliability.num_runs) == ((0, 1, 2, 3), 3, 4)
    assert eve.wer_mean == pytest.approx((27 / 60 + 1) / 4)
    assert eve.wer_geomean == pytest.approx(0.15 ** (3 / 4))


def test_a_run_has_learned_if_its_texts_depend_on_the_audio_whatever_its_wer():
    """Where no texts are known, what counts is a WER below 100 %."""
    assert compared(depends=(True,) * 4 + (True, True, False, True))["eve"].reliability.num_learned == 3
    assert compared(depends=(True,) * 4 + (True, False))["eve"].reliability.num_learned == 2


def test_a_failed_run_is_as_bad_as_one_that_recognizes_nothing_unless_it_was_started_again():
    eve = compared(eve=(GOOD, OTHER, GOOD), failed=[("eve", 3), ("eve", 3), ("eve", 0)])["eve"]
    silent = compared()["eve"]
    assert (eve.wers, eve.reliability) == (silent.wers, silent.reliability)
    assert eve.to_baseline == silent.to_baseline


def test_a_system_whose_runs_have_all_failed_loses():
    rows = compared(eve=(), failed=[("gone", seed) for seed in range(4)])
    gone = rows["gone"]
    assert (gone.wer_geomean, gone.reliability.num_learned, gone.may_be_best) == (1, 0, False)
    assert gone.to_baseline.verdict == "worse"
    assert rows["adamw"].may_be_best
