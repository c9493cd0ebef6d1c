"""Runs that never learned are counted apart, and do not decide about error rates."""

from dataclasses import replace

import pytest
from scipy import stats

from asr.compare.report.headline import headline
from asr.compare.report.sections import reliability_table, set_sections
from asr.compare.statistics.failures import reliabilities
from tests.compare.made_runs import compare_runs, run_of

GOOD, OTHER, SILENT = (1, 2, 3, 2, 1, 0), (2, 1, 2, 3, 0, 1), (10,) * 6


def compared(failed=(), eve=(GOOD, OTHER, GOOD, SILENT), depends=()):
    runs = [run_of("adamw", seed, counts) for seed, counts in enumerate((OTHER, GOOD, OTHER, GOOD))]
    runs += [run_of("eve", seed, counts) for seed, counts in enumerate(eve)]
    for place, known in enumerate(depends):
        runs[place] = replace(runs[place], sets={"test": replace(runs[place].sets["test"], depends_on_audio=known)})
    (found,) = compare_runs(runs, title="made", baseline="adamw", failed=failed).sets
    return found, {row.system: row for row in found.rows}


def test_a_run_that_never_learned_is_counted_and_left_out_of_the_means():
    found, rows = compared()
    eve = rows["eve"]
    assert (eve.seeds, eve.reliability.num_learned, eve.reliability.num_runs) == ((0, 1, 2), 3, 4)
    assert eve.wer_mean == pytest.approx(9 / 60)
    assert eve.wer_mean_of_all == pytest.approx((27 / 60 + 1) / 4)
    assert (eve.to_baseline or eve.to_best).verdict == "cannot distinguish"
    assert any("eve 3 of 4 (p = 1.000)." in sentence for sentence in headline(found, 0.95))
    cells = [[cell.text for cell in row] for row in reliability_table(found).rows]
    assert ["eve", "3 of 4", "1.000", "15.00", "36.25"] in cells


def test_the_row_itself_says_that_runs_are_left_out_and_has_the_mean_of_all():
    runs = [run_of("eve", seed, counts) for seed, counts in enumerate((GOOD, SILENT))]
    comparison = compare_runs([*runs, *(run_of("adamw", seed, OTHER) for seed in (0, 1))], baseline="adamw")
    (section,) = set_sections(comparison)
    names = [column.name for column in section.tables[0].columns]
    (row,) = (dict(zip(names, row, strict=True)) for row in section.tables[0].rows if row[0].text == "eve")
    assert (row["WER %"].text, row["WER % of all runs"].text, row["seeds"].text) == ("15.00", "57.50", "1 of 2 runs")
    assert any("eve 15.00 % [" in one and "(1 of 2 runs; of all: 57.50 %)" in one for one in section.headline)


def test_a_run_has_learned_if_its_texts_depend_on_the_audio_whatever_its_wer():
    """Where no texts are known, what counts is a WER below 100 %, and the report says so."""
    found, rows = compared(depends=(True,) * 4 + (True, True, False, True))
    assert (rows["eve"].seeds, rows["eve"].reliability.num_learned) == ((0, 1, 3), 3)
    assert not any("only the numbers of errors" in sentence for sentence in headline(found, 0.95))
    found, rows = compared(depends=(True,) * 4 + (True, False))
    assert (rows["eve"].seeds, rows["eve"].reliability.num_learned) == ((0, 2), 2)
    assert any("Of 2 runs only the numbers of errors" in sentence for sentence in headline(found, 0.95))


def test_a_run_that_failed_has_not_learned_unless_it_was_started_again():
    _, rows = compared(failed=[("eve", 9), ("eve", 9), ("eve", 0), ("cain", 1)])
    assert (rows["eve"].reliability.num_learned, rows["eve"].reliability.num_runs) == (3, 5)


def test_a_system_of_which_all_runs_failed_is_told_of():
    found, _ = compared(failed=[("gone", 1), ("gone", 2)], eve=(GOOD, OTHER))
    assert any("gone 0 of 2 (p = 0.200)." in sentence for sentence in headline(found, 0.95))
    exact = stats.fisher_exact([(4, 0), (0, 2)]).pvalue
    assert found.gone["gone"].p_adjusted == pytest.approx(3 * exact)
    last = [cell.text for cell in reliability_table(found).rows[-1]]
    assert last == ["gone", "0 of 2", f"{3 * exact:.3f}", "–", "–"]


def test_where_all_learned_nothing_is_said():
    found, rows = compared(eve=(GOOD, OTHER, GOOD))
    assert not reliability_table(found).rows
    assert not any("learned" in sentence for sentence in headline(found, 0.95))
    assert rows["eve"].wer_mean == rows["eve"].wer_mean_of_all


def test_a_system_of_which_none_learned_keeps_its_error_rates_but_has_no_verdict():
    """All of its runs may have failed by chance: how many learn is tested by itself."""
    found, rows = compared(eve=(SILENT, SILENT))
    assert (rows["eve"].wer_mean, rows["eve"].reliability.num_learned) == (1.0, 0)
    assert {one.verdict for one in found.pairs} == {"none learned: not compared"}
    assert (found.power, found.pairs[0].p_value) == (None, None)
    first, *rest = headline(found, 0.95)
    assert first.startswith("adamw is the only system of which runs have learned: 15.00 %")
    assert any("eve 0 of 2 (p = 0.067)." in sentence for sentence in rest)


def test_systems_of_which_none_learned_do_not_change_what_is_found_between_others():
    runs = [run_of(name, seed, [n + by for n in GOOD]) for name, by in (("a", 0), ("b", 6)) for seed in (1, 2, 3)]
    lost = [run_of("c", seed, (10,) * 5 + (9,)) for seed in (1, 2, 3)]
    lost = [replace(run, sets={"test": replace(run.sets["test"], depends_on_audio=False)}) for run in lost]
    (two,), (three,) = (compare_runs(some).sets for some in (runs, [*runs, *lost]))
    assert two.pairs[0].verdict == "better"
    assert two.pairs[0] in three.pairs
    assert headline(three, 0.95)[0].startswith("a is best of the systems that have learned: ")


def test_the_most_reliable_is_compared_with_each_other_one_and_corrected_for_all_pairs():
    """It is chosen after the runs: eight equal systems were found different in 6 of 100 comparisons otherwise."""
    found = reliabilities({"a": (20, 20), "b": (10, 20), "c": (19, 20)})
    exact = stats.fisher_exact([(20, 0), (10, 10)]).pvalue
    assert found["a"].p_adjusted is None
    assert found["b"].p_adjusted == pytest.approx(3 * exact)
    assert found["c"].p_adjusted == 1
