"""Results in plain words say no more than the runs allow."""

import dataclasses

import pytest

from tests.werdict.made_comparisons import made_comparison
from tests.werdict.made_runs import compare_runs, errors_of, run_of, sweep
from werdict.formatting import duration, interval, number, p_value, percent, points, ratio, shortened
from werdict.report.headline import headline
from werdict.report.sections import what_verdicts_are_about
from werdict.runs import Cost


def said(runs, looks=(), **options) -> list[str]:
    found = compare_runs(runs, title="made", looks=looks, **options)
    return headline(found.sets[0], 0.95, found.scale, looks)


def varied(system, *counts):
    return [run_of(system, seed, (one,) * 6) for seed, one in enumerate(counts)]


def test_the_first_sentence_says_which_may_be_best_and_the_second_which_differ_from_the_baseline():
    first, second, *rest = said(sweep(), baseline="adamw")
    assert first.startswith("eve is best, with 95 % confidence")
    assert "18.33 % [" in first
    assert "baseline adamw" in second
    assert "better: eve 0.31 [" in second
    assert "69 % fewer errors" in second
    assert "cain" in second
    assert any("only 3 speakers" in sentence for sentence in rest)


def test_several_systems_that_may_be_best_are_named_and_none_is_called_best():
    runs = [*varied("eve", 1, 2, 1), *varied("cain", 2, 1, 1), *varied("adamw", 9, 9, 9)]
    first, second, *_ = said(runs, baseline="adamw")
    assert all(name in first for name in ("2 of 3", "eve", "cain"))
    assert "adamw" not in first
    assert not any("is best" in sentence for sentence in (first, second))
    first, *_ = said([run for run in sweep() if run.system != "eve"], baseline="adamw")
    assert first.startswith("Any of the 2 systems may be best")


def test_differences_in_points_are_said_in_points():
    _, second, *_ = said(sweep(), baseline="adamw", scale="points")
    assert "eve −40.00 points [−" in second


@pytest.mark.parametrize("other", [varied("adamw", 6), [run_of("adamw", 5)]], ids=("one in common", "none in common"))
def test_with_one_seed_in_common_nothing_is_claimed(other):
    first, *rest = said([*varied("eve", 3), *other], baseline="adamw")
    assert "3 seeds" in first
    assert not any("better:" in sentence or "is best, with" in sentence for sentence in (first, *rest))


def test_a_single_lucky_seed_has_no_verdict_and_takes_none_from_the_others():
    first, second, *rest = said([*sweep(), run_of("lucky", 1, (0,) * 6)], baseline="adamw")
    assert all(name in first for name in ("eve", "lucky"))  # nothing is known that would exclude it
    assert "better: eve" in second
    assert any("one seed" in sentence and "lucky" in sentence for sentence in rest)


def test_a_system_that_fails_sometimes_is_said_to():
    runs = [*varied("eve", 1, 2, 1), *varied("adamw", 2, 1, 1)]
    sentences = said(runs, baseline="adamw", failed=[("eve", 3)])
    assert any("eve 3 of 4" in sentence for sentence in sentences)


@pytest.mark.parametrize(("num", "place"), [(3, "look 1 of 2"), (5, "look 2 of 2")])
def test_a_planned_look_says_which_one_it_is(num, place):
    runs = [*varied("eve", *[3, 4, 3, 4, 3][:num]), *varied("adamw", *[4, 3, 3, 4, 3][:num])]
    assert any(place in sentence for sentence in said(runs, (3, 5), baseline="adamw"))


def test_seeds_that_would_decide_what_is_open_are_named_where_some_would():
    (found,) = made_comparison(3, 3).sets
    for needed, text in ((17, "adamw 17"), (None, "more than 30 seeds")):
        rows = [
            dataclasses.replace(
                row,
                to_baseline=row.to_baseline
                and dataclasses.replace(row.to_baseline, verdict="cannot distinguish", seeds_needed=needed),
            )
            for row in found.rows
        ]
        sentences = headline(dataclasses.replace(found, rows=rows), 0.95, "ratio")
        name = rows[0].system if rows[0].system != found.baseline else rows[1].system
        assert any(text.replace("adamw", name) in sentence for sentence in sentences)
    assert not any("would" in sentence for sentence in headline(_decided(found), 0.95, "ratio"))


def _decided(found):
    rows = [
        dataclasses.replace(row, to_baseline=row.to_baseline and dataclasses.replace(row.to_baseline, verdict="better"))
        for row in found.rows
    ]
    return dataclasses.replace(found, rows=rows)


def test_speakers_that_are_in_the_training_data_limit_the_claim():
    runs = [
        dataclasses.replace(run, sets={"test": dataclasses.replace(run.sets["test"], seen_speakers=True)})
        for run in sweep()
    ]
    assert any("these speakers" in sentence for sentence in said(runs, baseline="adamw"))
    assert compare_runs(runs).sets[0].rows[0].scope == "seeds and utterances"


def test_an_interval_that_excludes_no_error_rate_is_not_shown():
    (found,) = compare_runs(varied("eve", 3, 8)).sets
    assert found.rows[0].high == float("inf")
    assert "[" not in headline(found, 0.95, "ratio")[0]


def with_words(*words, speakers=("a", "b", "c", "c")):
    counts = ((60, 3, 1, 1, 2, 3), (50, 2, 2, 1, 1, 4))
    errors = [errors_of(row[: len(words)], speakers=speakers) for row in counts]
    return [
        run_of(system, seed, sets={"test": dataclasses.replace(one, words=words)})
        for system in ("adamw", "eve")
        for seed, one in enumerate(errors)
    ]


def test_a_long_speaker_who_decides_is_mentioned():
    assert any(
        sentence.startswith("Few of the 3 speakers have most of the words: together they are as informative as 1.1 ")
        for sentence in said(with_words(900, 20, 20, 20))
    )
    six = with_words(200, 200, 150, 100, 150, 100, speakers="abcdef")
    assert not any(sentence.startswith(("Few", "There are only")) for sentence in said(six))


@pytest.mark.parametrize(("num", "is_said"), [(2, True), (3, True), (4, True), (5, False), (6, False)])
def test_so_few_speakers_that_intervals_are_wide_are_mentioned_though_they_are_equal(num, is_said):
    sentences = said(with_words(*[100] * num, speakers="abcdef"[:num]))
    expected = f"There are only {num} speakers, who are as informative as {num}.0 speakers of equal size: "
    assert any(sentence.startswith(expected) for sentence in sentences) == is_said


@pytest.mark.parametrize(("speakers", "what"), [(None, "are unknown"), (("a",) * 4, "a single speaker")])
def test_speakers_who_are_unknown_or_alone_are_mentioned(speakers, what):
    assert any(what in sentence for sentence in said(with_words(200, 200, 150, 100, speakers=speakers)))


@pytest.mark.parametrize(
    ("studies", "about"),
    [
        ({}, "about these settings only"),
        ({"adamw": (0, 1, 2), "eve": (0, 1, 1)}, "in each of 2 studies"),
        ({"adamw": (0, 1, 2), "eve": (0, 0, 0)}, "that one tuning has chosen"),
    ],
)
def test_verdicts_are_about_settings_or_about_a_way_of_tuning(studies, about):
    """What counts are the studies that the runs come from, not those that a sweep was to have."""
    runs = [dataclasses.replace(run, study=studies.get(run.system, (None,) * 3)[run.seed - 1]) for run in sweep()]
    assert about in what_verdicts_are_about(compare_runs(runs))
    of_others = compare_runs([dataclasses.replace(run, cost=Cost()) for run in runs])
    assert "asr-train" not in what_verdicts_are_about(of_others)
    assert ("asr-train" in what_verdicts_are_about(compare_runs(runs))) == (not studies)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (percent(0.0312), "3.12"),
        (percent(None), "–"),
        (points(-0.0042), "−0.42"),
        (points(-0.00001), "−0.001"),
        (points(0.0000049), "+0.0005"),
        (points(-1e-12), "0.00"),
        (percent(0.000004), "0.0004"),
        (percent(0), "0.00"),
        (ratio(0.9996), "0.9996"),
        (ratio(1.25), "1.25"),
        (ratio(1), "1.00"),
        (interval(float("-inf"), float("inf")), "–"),
        (interval(0.01, float("inf")), "[1.00, ∞]"),
        (interval(float("-inf"), 0.01, points), "[−∞, +1.00]"),
        (number(1234567), "1\u202f234\u202f567"),
        (number(0.01234), "0.0123"),
        (number(float("nan")), "–"),
        (duration(42), "42\N{NO-BREAK SPACE}s"),
        (duration(1200), "20\N{NO-BREAK SPACE}min"),
        (duration(72000), "20\N{NO-BREAK SPACE}h"),
        (duration(None), "–"),
        (p_value(0.0000001), "< 0.001"),
        (p_value(0.0416), "0.042"),
        (p_value(None), "–"),
        (shortened("abcdefghij", 5), "ab…ij"),
        (shortened("abc", 5), "abc"),
    ],
)
def test_numbers_read_well(made, text):
    assert made == text
