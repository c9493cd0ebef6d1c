"""Runs that never learned are counted apart, and do not decide about error rates."""

import pytest
from scipy import stats

from asr.compare.report.headline import headline
from asr.compare.report.sections import reliability_table
from asr.compare.statistics.failures import reliabilities
from tests.compare.made_runs import compare_runs, run_of

GOOD, OTHER, SILENT = (1, 2, 3, 2, 1, 0), (2, 1, 2, 3, 0, 1), (10,) * 6


def compared(failed=(), eve=(GOOD, OTHER, GOOD, SILENT)):
    runs = [run_of("adamw", seed, counts) for seed, counts in enumerate((OTHER, GOOD, OTHER, GOOD))]
    runs += [run_of("eve", seed, counts) for seed, counts in enumerate(eve)]
    (found,) = compare_runs(runs, title="made", baseline="adamw", failed=failed).sets
    return found, {row.system: row for row in found.rows}


def test_a_run_that_never_learned_is_counted_and_left_out_of_the_means():
    found, rows = compared()
    eve = rows["eve"]
    assert (eve.seeds, eve.reliability.num_learned, eve.reliability.num_runs) == ((0, 1, 2), 3, 4)
    assert eve.wer_mean == pytest.approx(9 / 60)
    assert eve.wer_mean_of_all == pytest.approx((27 / 60 + 1) / 4)
    assert (eve.to_baseline or eve.to_best).verdict == "cannot distinguish"
    assert any("which takes a WER below 100 %: eve 3 of 4." in sentence for sentence in headline(found, 0.95))
    cells = [[cell.text for cell in row] for row in reliability_table(found).rows]
    assert ["eve", "3 of 4", "1.000", "15.00", "36.25"] in cells


def test_a_run_that_failed_has_not_learned_unless_it_was_started_again():
    _, rows = compared(failed=[("eve", 9), ("eve", 9), ("eve", 0), ("cain", 1)])
    assert (rows["eve"].reliability.num_learned, rows["eve"].reliability.num_runs) == (3, 5)


def test_a_system_of_which_all_runs_failed_is_told_of():
    found, _ = compared(failed=[("gone", 1), ("gone", 2)], eve=(GOOD, OTHER))
    assert any("which takes a WER below 100 %: gone 0 of 2." in sentence for sentence in headline(found, 0.95))
    exact = stats.fisher_exact([(4, 0), (0, 2)]).pvalue
    assert found.gone["gone"].p_adjusted == pytest.approx(3 * exact)
    last = [cell.text for cell in reliability_table(found).rows[-1]]
    assert last == ["gone", "0 of 2", f"{3 * exact:.3f}", "–", "–"]


def test_where_all_learned_nothing_is_said():
    found, rows = compared(eve=(GOOD, OTHER, GOOD))
    assert not reliability_table(found).rows
    assert not any("learned" in sentence for sentence in headline(found, 0.95))
    assert rows["eve"].wer_mean == rows["eve"].wer_mean_of_all


def test_a_system_of_which_none_learned_keeps_its_error_rates():
    _, rows = compared(eve=(SILENT, SILENT))
    assert (rows["eve"].wer_mean, rows["eve"].reliability.num_learned) == (1.0, 0)
    assert (rows["eve"].to_baseline or rows["eve"].to_best).verdict == "worse"


def test_the_most_reliable_is_compared_with_each_other_one_and_corrected_for_all_pairs():
    """It is chosen after the runs: eight equal systems were found different in 6 of 100 comparisons otherwise."""
    found = reliabilities({"a": (20, 20), "b": (10, 20), "c": (19, 20)})
    exact = stats.fisher_exact([(20, 0), (10, 10)]).pvalue
    assert found["a"].p_adjusted is None
    assert found["b"].p_adjusted == pytest.approx(3 * exact)
    assert found["c"].p_adjusted == 1
