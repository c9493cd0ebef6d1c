import math

import numpy as np
import pytest
import scipy.stats

from werdict import error_files
from werdict.error_files import Interval, bootstrap_interval
from werdict.scoring import ErrorCounts, Score, ScoredUtterance, Utterance
from werdict.scoring import score as evaluate


def scored(errors, words, speakers=None):
    """A score with these deletions and reference words per utterance."""
    speakers = speakers or [None] * len(errors)
    items = tuple(
        ScoredUtterance(
            Utterance(f"utt{number}", "", "", speaker), ErrorCounts(int(n - e), 0, int(e), 0), ErrorCounts(hits=1), ()
        )
        for number, (e, n, speaker) in enumerate(zip(errors, words, speakers, strict=True))
    )
    return Score(items, sum((item.words for item in items), ErrorCounts()), ErrorCounts(hits=1))


def random_score(rng, num_speakers, utterances_each=10, spread=0.1):
    """Utterances of 5 to 15 words; each speaker has an error rate of his own around 0.3."""
    rates = np.clip(rng.normal(0.3, spread, num_speakers), 0, 1).repeat(utterances_each)
    words = rng.integers(5, 16, len(rates))
    return scored(rng.binomial(words, rates), words, [f"s{i // utterances_each}" for i in range(len(rates))])


def without_speakers(score):
    counts = [item.words for item in score.utterances]
    return scored([c.errors for c in counts], [c.num_reference for c in counts])


def test_the_interval_holds_the_measured_rate_and_names_its_unit():
    score = random_score(np.random.default_rng(0), num_speakers=15)
    interval = bootstrap_interval(score)
    assert interval.low < score.wer < interval.high
    assert (interval.unit, interval.num_units, interval.level, interval.method) == ("speaker", 15, 0.95, "bootstrap")


def test_two_units_give_the_ends_that_counting_gives():
    # draws of two: both first (1/4), one each (1/2), both second (1/4)
    score = scored([1, 3], [10, 10])
    assert bootstrap_interval(score) == Interval(0.1, 0.3, "utterance", 2)
    assert bootstrap_interval(score, level=0.4) == Interval(0.2, 0.2, "utterance", 2, level=0.4)


def test_rates_are_sums_by_sums_not_means_of_rates():
    interval = bootstrap_interval(scored([1, 0], [1, 99]), level=0.4)
    assert (interval.low, interval.high) == (0.01, 0.01)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another_one():
    score = random_score(np.random.default_rng(1), num_speakers=12)
    assert bootstrap_interval(score, seed=3) == bootstrap_interval(score, seed=3)
    assert bootstrap_interval(score, seed=3) != bootstrap_interval(score, seed=4)


def test_a_large_set_is_drawn_as_often_as_its_size_allows(monkeypatch):
    score = random_score(np.random.default_rng(2), num_speakers=30)
    monkeypatch.setattr(error_files, "MAX_DRAWS", 30 * 500)
    assert bootstrap_interval(score) == bootstrap_interval(score, num_resamples=500)
    assert bootstrap_interval(score, num_resamples=200) != bootstrap_interval(score)
    monkeypatch.setattr(error_files, "MAX_DRAWS", 1)
    assert bootstrap_interval(score) == bootstrap_interval(score, num_resamples=error_files.MIN_RESAMPLES)


def test_speakers_with_habits_widen_the_interval():
    score = random_score(np.random.default_rng(3), num_speakers=20, utterances_each=30, spread=0.2)
    by_speaker, by_utterance = bootstrap_interval(score), bootstrap_interval(without_speakers(score))
    assert (by_speaker.unit, by_utterance.unit, by_utterance.num_units) == ("speaker", "utterance", 600)
    assert by_speaker.high - by_speaker.low > 2 * (by_utterance.high - by_utterance.low)


@pytest.mark.parametrize("speakers", [["a", "a", "a"], ["a", "b", None], ["a", "b", ""], [None, None, None]])
def test_without_two_speakers_or_with_a_nameless_one_utterances_are_drawn(speakers):
    interval = bootstrap_interval(scored([1, 2, 0], [5, 5, 5], speakers))
    assert (interval.unit, interval.num_units) == ("utterance", 3)


def test_the_utterances_of_a_speaker_go_together_wherever_they_stand():
    mixed = scored([1, 3, 0, 0], [5, 5, 5, 5], ["a", "b", "a", "b"])
    assert bootstrap_interval(mixed) == Interval(0.1, 0.3, "speaker", 2)


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_about_95_of_100_intervals_hold_the_true_rate(spread):
    rng = np.random.default_rng(5)
    intervals = [
        bootstrap_interval(random_score(rng, num_speakers=40, utterances_each=3, spread=spread), num_resamples=500)
        for _ in range(300)
    ]
    held = sum(interval.low <= 0.3 <= interval.high for interval in intervals) / len(intervals)
    assert 0.90 < held < 0.98


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("num_words", [1, 81, 50_000])
def test_without_errors_the_upper_end_is_clopper_and_pearsons(num_words, level):
    interval = bootstrap_interval(scored([0, 0], [num_words, 0], ["a", "b"]), level=level)
    exact = scipy.stats.binomtest(0, num_words, alternative="less").proportion_ci(level, method="exact")
    assert (interval.low, interval.unit, interval.num_units) == (0.0, "word", num_words)
    assert interval.high == pytest.approx(exact.high, rel=1e-9)
    assert (interval.method, interval.level) == ("exact upper bound", level)


def test_a_single_utterance_with_errors_gives_no_interval():
    assert bootstrap_interval(scored([1], [4])) == Interval(0.0, math.inf, "utterance", 1, method="none")


def test_draws_without_a_reference_word_do_not_count():
    # the second utterance is an insertion where nobody spoke; drawn twice it has no rate
    said, noise = Utterance("said", "one", "two"), Utterance("noise", "", "uh")
    interval = bootstrap_interval(evaluate([said, noise]), num_resamples=100)
    assert (interval.low, interval.high, interval.num_units) == (1.0, 2.0, 2)


def test_the_interval_agrees_with_kaldialign_on_utterances():
    kaldialign = pytest.importorskip("kaldialign", reason="kaldialign, the independent bootstrap, is not installed")
    rng = np.random.default_rng(7)
    words = rng.integers(5, 16, 400)
    errors = rng.binomial(words, 0.2)
    references = [["a"] * n for n in words]
    hypotheses = [["a"] * (n - e) + ["b"] * e for n, e in zip(words, errors, strict=True)]
    theirs = kaldialign.bootstrap_wer_ci(references, hypotheses, replications=10_000)
    ours = bootstrap_interval(scored(errors, words))
    # theirs is 1.96 standard deviations to both sides, ours percentiles: the width agrees to the Monte-Carlo error
    width = theirs["ci95max"] - theirs["ci95min"]
    assert ours.low == pytest.approx(theirs["ci95min"], abs=0.05 * width)
    assert ours.high == pytest.approx(theirs["ci95max"], abs=0.05 * width)
