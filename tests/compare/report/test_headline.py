"""Results in plain words say no more than the runs allow."""

import dataclasses
import re

import pytest

from asr.compare.inputs.runs import Cost
from asr.compare.report.headline import best_of, headline
from asr.compare.report.sections import what_verdicts_are_about
from asr.evaluation.formatting import detectable, duration, interval, number, p_value, percent, points, ratio, shortened
from tests.compare.made_comparisons import made_comparison
from tests.compare.made_runs import compare_runs, errors_of, run_of, sweep

BAD = (9, 9, 9, 9, 9, 9)


def said(runs, **options) -> list[str]:
    (found,) = compare_runs(runs, title="made", **options).sets
    return headline(found, 0.95)


def test_the_best_comes_first_then_what_is_sure_and_what_is_not():
    first, how, few, *rest = said(sweep(), baseline="adamw")
    assert first.startswith("eve is best: 18.33 % [")
    assert how.startswith("The brackets show the 95 % interval")
    assert "picked as the lowest of 3" in how
    assert few.startswith("There are only 3 speakers")
    assert rest[0].startswith("Over seeds, on this test set, ")
    assert rest[1] == "eve is better than adamw, cain."
    assert rest[2].startswith("Compared with the baseline adamw: −40.00 points [−")
    assert rest[2].endswith(", better.")
    assert rest[3].startswith("80 of 100 such comparisons would find a true difference of ")
    assert len(rest) == 4


def test_what_cannot_be_distinguished_is_named():
    first, *rest = said([run for run in sweep() if run.system != "eve"], baseline="adamw")
    assert first.startswith("No difference found between ")
    assert any(re.match("(cain|adamw) cannot be distinguished from (adamw|cain)", sentence) for sentence in rest)
    assert not any("is better" in sentence or "is best" in sentence for sentence in rest)


def varied(system, *counts):
    return [run_of(system, seed, (one,) * 6) for seed, one in enumerate(counts)]


FEW = {
    "two seeds": (
        [*varied("eve", 3, 8), *varied("adamw", 6, 9), *varied("cain", 4, 5)],
        r"(About \d+|More than 100) seeds",
    ),
    "equal means": ([*varied("eve", 3, 8), *varied("adamw", 8, 3)], "At least 3 seeds"),
    "one seed": ([*varied("eve", 3), *varied("adamw", 6)], "At least 3 seeds"),
    "one in common": ([*varied("eve", 3, 4), *varied("adamw", 6)], "At least 3 seeds"),
    "one has learned": ([*varied("eve", 3, 10), *varied("adamw", 6, 5)], "At least 3 seeds"),
}


@pytest.mark.parametrize(("runs", "needed"), FEW.values(), ids=FEW)
def test_with_too_few_seeds_the_first_sentences_say_so_and_how_many_are_needed(runs, needed):
    first, rates, *rest = said(runs, baseline="adamw")
    assert first.startswith("No difference found between ")
    assert "adamw (baseline)" in first
    assert re.search(f"{needed}.* needed", first)
    assert re.search(r"eve \d\d\.00 %", rates)
    assert not any("> 100" in sentence or "∞" in sentence or "80 of 100" in sentence for sentence in (first, *rest))
    assert len(rest) <= 3


def test_the_baseline_is_named_though_it_is_no_candidate_or_the_sixth():
    worse = [run_of("adamw", seed, (8, 9, 8, 7, 8, 9)) for seed in (1, 2, 3)]
    first, *_ = said(
        [*worse, *(run for run in sweep() if run.system == "eve"), *varied("x", 9, 1, 2, 1)], baseline="adamw"
    )
    assert first.startswith("No difference found between ")
    assert "The baseline, adamw, is " in first
    many = [one for rank in range(8) for one in varied("adamw" if rank == 6 else f"s{rank}", 3 + rank / 10, 4, 3)]
    first, *_ = said(many, baseline="adamw")
    assert "adamw (baseline)" in first
    assert " and 3 more" in first


@pytest.mark.parametrize(
    ("runs", "what_it_takes"),
    [
        ([*varied("eve", 3, 4, 3), *varied("adamw", 3, 4, 4)], "would be needed"),
        ([*varied("eve", 10, 10, 10), *varied("adamw", 10, 10, 10)], "Train for more updates"),
        ([*varied("eve", 10, 10, 10), *varied("adamw", 13, 13, 13)], "Train for more updates"),
        ([*varied("eve", 1, 1, 1), *varied("cain", 1, 1, 1), *varied("adamw", 9, 9, 9)], "80 of 100"),
    ],
    ids=("three seeds that vary", "none learned", "none learned by unequal amounts", "two of three"),
)
def test_without_a_winner_none_is_named_but_what_it_takes(runs, what_it_takes):
    first, *rest = said(runs)
    assert first.startswith("No difference found")
    assert "∞" not in first
    assert any(what_it_takes in sentence for sentence in rest)
    assert not any("is best" in sentence for sentence in rest)
    if what_it_takes != "would be needed":
        assert not any("seeds" in sentence and "would be needed" in sentence for sentence in rest)


def test_an_interval_that_excludes_no_error_rate_is_not_shown():
    (found,) = compare_runs(varied("eve", 3, 8)).sets
    assert found.rows[0].high == float("inf")
    assert "[" not in headline(found, 0.95)[0]


def with_words(*words, speakers=("a", "b", "c", "c")):
    counts = ((60, 3, 1, 1, 2, 3), (50, 2, 2, 1, 1, 4))
    errors = [errors_of(row[: len(words)], speakers=speakers) for row in counts]
    return [
        run_of("adamw", seed, sets={"test": dataclasses.replace(one, words=words)}) for seed, one in enumerate(errors)
    ]


def test_a_long_speaker_who_decides_is_mentioned():
    _, _, sentence, _ = said(with_words(900, 20, 20, 20))
    assert sentence.startswith("Few of the 3 speakers have most of the words: together they are as informative as 1.1 ")
    six = with_words(200, 200, 150, 100, 150, 100, speakers="abcdef")
    assert not any(sentence.startswith(("Few", "There are only")) for sentence in said(six))


@pytest.mark.parametrize(("num", "is_said"), [(2, True), (3, True), (4, True), (5, False), (6, False)])
def test_so_few_speakers_that_intervals_are_wide_are_mentioned_though_they_are_equal(num, is_said):
    sentences = said(with_words(*[100] * num, speakers="abcdef"[:num]))
    expected = f"There are only {num} speakers, who are as informative as {num}.0 speakers of equal size: "
    assert any(sentence.startswith(expected) for sentence in sentences) == is_said


@pytest.mark.parametrize(("speakers", "what"), [(None, "are unknown"), (("a",) * 4, "a single speaker")])
def test_speakers_who_are_unknown_or_alone_are_mentioned(speakers, what):
    _, _, sentence, _ = said(with_words(200, 200, 150, 100, speakers=speakers))
    assert what in sentence


def test_the_omnibus_test_comes_before_the_pairs_and_says_what_it_is_of():
    sentences = headline(made_comparison(8).sets[0], 0.95)
    at = next(place for place, sentence in enumerate(sentences) if sentence.startswith("Over seeds"))
    assert re.fullmatch(
        r"Over seeds, on this test set, the systems differ \(Friedman p < 0\.001; F, if their variances are equal, "
        r"p < 0\.001\)\.",
        sentences[at],
    )
    assert re.match("eve lr=0.01 (is better than|cannot be distinguished from) ", sentences[at + 1])
    alike = [run for run in sweep() if run.system != "eve"]
    alike += [dataclasses.replace(run, system="x", seed=run.seed % 3 + 1) for run in alike[::2]]
    assert any("on this test set, the systems are not shown to differ (Friedman p = " in one for one in said(alike))
    assert not any(sentence.startswith("Over seeds") for sentence in headline(made_comparison(2).sets[0], 0.95))


def test_the_first_screen_counts_other_pairs_that_differ_significantly():
    (found,) = made_comparison(8, 5).sets
    sentences = headline(found, 0.95)
    others = [one for one in found.pairs if not {one.system, one.other} & {found.rows[0].system, "adamw"}]
    told = [one for one in others if one.verdict == "better"]
    assert f"Of the {len(others)} other pairs, {len(told)} differ significantly: see their table." in sentences
    equal = dataclasses.replace(
        found, pairs=[dataclasses.replace(one, verdict="cannot distinguish") for one in found.pairs]
    )
    assert "Of the 15 other pairs, none differs significantly." in headline(equal, 0.95)
    assert not any("other pair" in sentence for sentence in headline(made_comparison(3).sets[0], 0.95))
    assert not any("other pair" in one for one in headline(made_comparison(6, comparisons="baseline").sets[0], 0.95))


def test_seeds_that_would_settle_what_is_open_are_named():
    (found,) = made_comparison(3, 2).sets
    for needed, text in ((17, "About 17 seeds each"), (None, "More than 100 seeds, or a larger test set,")):
        power = dataclasses.replace(found.power, nearest="adamw", seeds_needed=needed)
        sentences = headline(dataclasses.replace(found, power=power), 0.95)
        expected = f"{text} would be needed to distinguish eve lr=0.01 from adamw"
        assert any(sentence.startswith(expected) for sentence in sentences)
    settled = dataclasses.replace(found, power=dataclasses.replace(found.power, nearest=None))
    assert not any("would be needed" in sentence for sentence in headline(settled, 0.95))


def test_with_one_seed_nothing_is_claimed():
    first, *rest = said([run_of("eve", 1), run_of("adamw", 1, BAD)], baseline="adamw")
    assert first.startswith("No difference found between ")
    assert not any("best" in sentence or "80 of 100" in sentence for sentence in rest)


def test_a_single_lucky_seed_is_not_the_best():
    runs = [*(run_of("adamw", seed, BAD) for seed in (1, 2)), run_of("eve", 1)]
    (found,) = compare_runs(runs, title="made").sets
    assert found.rows[0].system == "eve"
    assert best_of(found).system == "adamw"
    assert headline(found, 0.95)[0].startswith("No difference found between ")
    (found,) = compare_runs([*sweep(), run_of("lucky", 1, (0,) * 6)], title="made").sets
    assert headline(found, 0.95)[0].startswith("eve is best of the systems with several seeds: 18.33 %")


def test_a_difference_in_favor_of_another_is_not_hidden():
    (found,) = compare_runs(sweep(), title="made").sets
    rows = list(found.rows)
    rows[1] = dataclasses.replace(rows[1], to_best=dataclasses.replace(rows[1].to_best, verdict="better"))
    sentences = headline(dataclasses.replace(found, rows=rows), 0.95)
    assert f"On the seeds that both have, eve is worse than {rows[1].system}." in sentences


def test_the_percentage_of_the_baseline_is_of_the_seeds_in_common():
    alone = [run_of("adamw", seed, BAD) for seed in (8, 9)]
    assert any("69 % fewer errors, better." in sentence for sentence in said([*sweep(), *alone], baseline="adamw"))


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
        (detectable(0.0312), "3.12"),
        (detectable(1.5), "> 100"),
        (detectable(None), "–"),
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
