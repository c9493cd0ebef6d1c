"""From runs to verdicts, and what is said where runs cannot be compared."""

import dataclasses

import numpy as np
import pytest

from tests.werdict.made_comparisons import COUNTS, better, compare_runs, errors_of, run_of, sweep
from werdict.comparison import find_baseline
from werdict.error_files import interval_of_counts
from werdict.runs import Curve


def rows_of(runs, **options):
    options = {"title": "made", "baseline": "adamw", **options}
    comparison = compare_runs(runs, **options)
    return comparison, {row.system: row for row in comparison.sets[0].rows}


def test_better_worse_and_cannot_distinguish():
    comparison, rows = rows_of(sweep())
    assert comparison.sets[0].rows[0].system == "eve"
    assert rows["eve"].to_baseline.verdict == "better"
    assert rows["adamw"].to_baseline is None
    assert rows["cain"].to_baseline.verdict == "cannot distinguish"
    assert [name for name, row in rows.items() if row.may_be_best] == ["eve"]
    assert comparison.problems == []
    _, other = rows_of(sweep(), baseline="eve")
    assert other["adamw"].to_baseline.verdict == "worse"


def test_a_contrast_is_the_ratio_of_geometric_means_with_points_beside_it():
    _, rows = rows_of(sweep())
    found = rows["eve"].to_baseline
    assert found.value == pytest.approx(rows["eve"].wer_geomean / rows["adamw"].wer_geomean)
    assert found.points == pytest.approx(rows["eve"].wer_mean - rows["adamw"].wer_mean) == pytest.approx(-0.4)
    assert found.low < found.value < found.high < 1
    assert (found.other, found.num_seeds) == ("adamw", 3)
    _, points = rows_of(sweep(), scale="points")
    assert points["eve"].to_baseline.value == pytest.approx(-0.4)
    assert points["eve"].to_baseline.high < 0


def test_verdicts_are_corrected_for_the_systems_that_are_compared_with_the_baseline():
    _, few = rows_of([run for run in sweep() if run.system != "cain"])
    assert few["eve"].to_baseline.p_adjusted == few["eve"].to_baseline.p_value
    _, many = rows_of(sweep())
    assert many["eve"].to_baseline.p_adjusted == pytest.approx(2 * many["eve"].to_baseline.p_value)


def test_all_pairs_are_a_further_question_that_changes_no_other_answer():
    _, rows = rows_of(sweep())
    comparison, same = rows_of(sweep(), pairs="all")
    assert same == rows
    (found,) = comparison.sets
    assert {frozenset((pair.system, pair.other)) for pair in found.pairs} == {
        frozenset(pair) for pair in (("eve", "adamw"), ("eve", "cain"), ("adamw", "cain"))
    }
    (pair,) = (pair for pair in found.pairs if {pair.system, pair.other} == {"eve", "adamw"})
    assert (pair.system, pair.verdict) == ("eve", "better")
    assert pair.p_adjusted > rows["eve"].to_baseline.p_adjusted


def test_a_system_whose_runs_all_fail_is_worse_than_the_baseline():
    comparison, rows = rows_of(sweep(), failed=[("lost", seed) for seed in (1, 2, 3)])
    assert rows["lost"].wers == (1, 1, 1)
    assert rows["lost"].to_baseline.verdict == "worse"
    assert (rows["lost"].reliability.num_learned, rows["lost"].reliability.num_runs) == (0, 3)
    assert (rows["lost"].wer_geomean, rows["lost"].may_be_best, rows["eve"].may_be_best) == (1, False, True)
    assert comparison.sets[0].num_runs == 9  # that finished


def test_on_fixed_sets_a_system_that_suits_some_speakers_is_better_for_these():
    counts = {1: (8, 8, 6, 6, 7, 7), 2: (8, 8, 6, 6, 7, 8), 3: (8, 8, 6, 6, 8, 7)}
    runs = [run_of("adamw", seed, errors) for seed, errors in counts.items()]
    runs += [run_of("eve", seed, (0, *errors[1:5], 8)) for seed, errors in counts.items()]
    verdicts = [rows_of(runs, fixed_sets=fixed)[1]["eve"].to_baseline.verdict for fixed in (False, True)]
    assert verdicts == ["cannot distinguish", "better"]


def test_a_test_set_without_the_baseline_has_the_first_system_in_its_place():
    other = [dataclasses.replace(run, sets={"other": run.sets["test"]}) for run in sweep() if run.system != "adamw"]
    comparison, _ = rows_of([*(run for run in sweep() if run.system != "cain"), *other])
    assert [(found.name, found.baseline) for found in comparison.sets] == [("other", "cain"), ("test", "adamw")]


def test_looks_share_the_level():
    _, once = rows_of(sweep())
    _, twice = rows_of(sweep(), looks=(3, 5))
    assert twice["eve"].to_baseline.high > once["eve"].to_baseline.high
    assert twice["eve"].to_baseline.p_value == once["eve"].to_baseline.p_value


def test_the_interval_of_the_mean_says_what_it_is_over():
    _, rows = rows_of(sweep())
    assert rows["adamw"].scope == "seeds and speakers"
    assert rows["adamw"].low < rows["adamw"].wer_mean < rows["adamw"].high
    unknown = [
        dataclasses.replace(run, sets={"test": errors_of(run.sets["test"].errors, speakers=None)}) for run in sweep()
    ]
    assert rows_of(unknown)[1]["adamw"].scope == "seeds and utterances"


def test_a_single_seed_is_shown_with_its_own_interval_and_gets_no_verdict():
    runs = [*sweep(), run_of("lucky", 1, [0, 1, 0, 0, 0, 0])]
    _, rows = rows_of(runs)
    lucky = rows["lucky"]
    assert (lucky.scope, lucky.wer_sd) == ("this run only", None)
    by_speaker = interval_of_counts("speaker", np.array([1, 0, 0]), np.array([20, 20, 20]))
    assert (lucky.wer_mean, lucky.low, lucky.high) == pytest.approx((1 / 60, by_speaker.low, by_speaker.high))
    assert lucky.to_baseline.verdict == "one seed: not compared"
    assert lucky.to_baseline.p_value is None
    assert rows["eve"].to_baseline.verdict == "better"


def test_systems_with_different_seeds_are_paired_on_the_common_ones():
    runs = [run for run in sweep() if (run.system, run.seed) != ("eve", 3)] + [run_of("eve", 7, [9] * 6)]
    _, rows = rows_of(runs)
    assert rows["eve"].seeds == (1, 2, 7)
    assert rows["eve"].to_baseline.num_seeds == 2
    assert rows["eve"].to_baseline.points == pytest.approx(-0.4)


def test_no_errors_at_all_do_not_mean_a_rate_of_zero():
    _, rows = rows_of([run_of(name, seed, [0] * 6) for name in ("adamw", "eve") for seed in (1, 2, 3)])
    assert rows["eve"].low == 0
    assert rows["eve"].high >= 1 - 0.05 ** (1 / 60)
    assert rows["eve"].to_baseline.verdict == "cannot distinguish"
    assert (rows["eve"].to_baseline.p_adjusted, rows["eve"].to_baseline.value) == (pytest.approx(1), 1)


def test_the_same_system_and_seed_twice_is_said_and_the_later_folder_counts():
    again = run_of("eve", 1, [9] * 6, folder="runs/eve-1-later")
    comparison, rows = rows_of([again, *sweep()])
    (problem,) = comparison.problems
    assert problem == "eve, seed 1 was trained twice: runs/eve-1 is left out, runs/eve-1-later is used"
    assert rows["eve"].wers[0] == pytest.approx(0.9)


def test_different_numbers_of_updates_are_said_and_compared():
    runs = [
        dataclasses.replace(run, cost=run_of("x", 1, num_updates=50).cost) if run.system == "eve" else run
        for run in sweep()
    ]
    comparison, rows = rows_of(runs)
    assert "50 updates: eve seed 1, eve seed 2, eve seed 3; 100 updates: adamw seed 1" in comparison.problems[0]
    assert rows["eve"].to_baseline.verdict == "better"


def test_a_set_of_other_utterances_is_refused_for_those_runs():
    odd = run_of("eve", 4, sets={"test": errors_of([1] * 6, prefix="v")})
    comparison, rows = rows_of([*sweep(), odd])
    assert comparison.problems == [
        "test: runs/eve-4 left out: it has different utterances (also has v0, v1, v2, v3, v4 and 1 more; "
        "lacks u0, u1, u2, u3, u4 and 1 more)"
    ]
    assert rows["eve"].seeds == (1, 2, 3)


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (errors_of([1] * 6, words=9), "number of words differs for u0, u1, u2, u3, u4 and 1 more"),
        (errors_of([1] * 6, speakers=("a", "a", "b", "b", "c", "b")), "speaker differs for u5"),
    ],
)
def test_the_same_ids_with_other_references_are_refused(odd, what):
    comparison, _ = rows_of([*sweep(), run_of("eve", 4, sets={"test": odd})])
    assert comparison.problems == [f"test: runs/eve-4 left out: the {what}"]


def test_sets_are_compared_on_the_runs_that_have_them():
    more = [
        dataclasses.replace(run, sets={**run.sets, "other": errors_of(better(COUNTS[run.seed], 1))})
        for run in sweep()
        if run.system != "cain"
    ]
    comparison, _ = rows_of([*more, *(run for run in sweep() if run.system == "cain")])
    assert [(found.name, len(found.rows)) for found in comparison.sets] == [("other", 2), ("test", 3)]
    assert comparison.problems == [
        "other: compared without runs/cain-1, runs/cain-2, runs/cain-3, which have no errors of this set"
    ]


def test_a_single_utterance_is_no_test_set():
    runs = [run_of("adamw", 1, sets={"one": errors_of([1]), "test": errors_of([1, 2])})]
    comparison, _ = rows_of(runs)
    assert [found.name for found in comparison.sets] == ["test"]
    assert "one is left out: it has a single utterance with words" in comparison.problems[0]


def test_a_speaker_without_words_is_no_second_speaker():
    speakers = ("a", "a", "a", "b")
    sets = {
        "alone": dataclasses.replace(errors_of([1, 2, 1, 0], speakers=speakers), words=(10, 10, 10, 0)),
        "one": dataclasses.replace(errors_of([1, 2, 0, 0], speakers=speakers), words=(10, 0, 0, 0)),
    }
    comparison, rows = rows_of([run_of("adamw", seed, sets=sets) for seed in (1, 2)])
    assert rows["adamw"].scope == "seeds and utterances"
    assert [problem.split(":")[0] for problem in comparison.problems] == ["one is left out"]


def test_nothing_to_compare_says_why():
    with pytest.raises(ValueError, match="runs/x is left out: unfinished"):
        compare_runs([], problems=["runs/x is left out: unfinished"])
    with pytest.raises(ValueError, match=r"2 runs chose settings$"):
        compare_runs([], baseline="adamw", notes=["2 runs chose settings"])


@pytest.mark.parametrize(
    ("systems", "asked", "expected"),
    [
        (["adamw", "eve"], "adamw", "adamw"),
        (["AdamW", "eve"], "adamw", "AdamW"),
        (["adamw lr=0.1", "eve"], "adamw", "adamw lr=0.1"),
        (["adamw", "adamw lr=0.1"], "adamw", "adamw"),
        (["eve", "AdamW"], "auto", "AdamW"),
        (["eve", "cain"], "auto", "eve"),
        (["adamw lr=0.1", "adamw lr=0.2"], "auto", "adamw lr=0.1"),
        (["eve", "auto"], "auto", "auto"),
    ],
)
def test_the_baseline_is_found_by_name(systems, asked, expected):
    assert find_baseline(systems, asked) == expected


@pytest.mark.parametrize("systems", [["adamw lr=0.1", "adamw lr=0.2", "eve"], ["eve", "cain"]], ids=str)
def test_a_baseline_that_cannot_be_found_is_refused(systems):
    with pytest.raises(ValueError, match=f"^baseline: .*{systems[0]}, {systems[1]}"):
        find_baseline(systems, "adamw")


def with_targets(*targets):
    return [dataclasses.replace(run, target_wer=one) for run, one in zip(sweep(), targets * 9, strict=False)]


@pytest.mark.parametrize(
    ("targets", "given", "is_fixed"),
    [((0.2,), None, True), ((0.2,), 0.2, True), ((0.2,), 0.3, False), ((None,), 0.3, False)],
)
def test_a_target_was_fixed_before_the_runs_only_if_all_name_the_same(targets, given, is_fixed):
    comparison, _ = rows_of(with_targets(*targets), target_wer=given)
    assert (comparison.target.wer, comparison.target.is_fixed) == (given or targets[0], is_fixed)
    assert len(comparison.problems) == 1  # no run has logged its WER on the development sets


@pytest.mark.parametrize("targets", [(0.2, 0.3), (None, 0.3)], ids=str)
def test_targets_that_differ_are_said_and_not_used(targets):
    comparison, _ = rows_of(with_targets(*targets))
    assert (comparison.target, comparison.times) == (None, [])
    (problem,) = comparison.problems
    assert all(f"{target}" in problem for target in targets)
    assert rows_of(with_targets(*targets), target_wer=0.5)[0].target.wer == 0.5


def test_runs_without_logged_times_are_named_where_others_have_them_or_minutes_are_asked_for():
    comparison, _ = rows_of(sweep(), minutes=3)
    assert comparison.equal_time is None
    (problem,) = comparison.problems
    assert "minutes=3" in problem
    timed, untimed = (Curve((10, 20), seconds, (0.9, 0.5)) for seconds in ((1.0, 2.0), ()))
    runs = [dataclasses.replace(run, curves={"val/wer": timed}) for run in sweep()]
    assert rows_of(runs)[0].problems == []
    comparison, _ = rows_of([dataclasses.replace(runs[0], curves={"val/wer": untimed}), *runs[1:]])
    assert comparison.equal_time is None
    (problem,) = comparison.problems
    assert problem.endswith(f" {runs[0].folder}")
