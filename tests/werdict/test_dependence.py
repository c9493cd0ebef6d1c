"""Hypotheses that depend on the audio fit their own references better than those of other utterances."""

import numpy as np
import pytest

from werdict.error_files import LEVEL, dependence_p, depends_on_audio
from werdict.scoring import Utterance

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RNG = np.random.default_rng(0)
REFERENCES = [" ".join(RNG.choice(WORDS, RNG.integers(2, 7))) for _ in range(300)]


def p_of(hypotheses, references=REFERENCES):
    pairs = zip(references, hypotheses, strict=True)
    return dependence_p([Utterance(f"u{place:03d}", *texts) for place, texts in enumerate(pairs)])


def perhaps(rng, text, share):
    return text if rng.random() < share else ""


@pytest.mark.parametrize(
    ("hypothesis", "depends"),
    [
        (lambda rng, text: text, True),
        (lambda rng, text: "".join(f"{word}x " for word in text.split()), True),  # not a word is right
        (lambda rng, text: perhaps(rng, "six", 0.6 if "six" in text else 0), True),  # 95 % are deleted
        (lambda rng, text: f"{text} {' '.join(rng.choice(WORDS, 20))}", True),  # a WER of 500 %
        (lambda rng, text: "", False),
        (lambda rng, text: "six", False),
        (lambda rng, text: perhaps(rng, "six", 0.3), False),
        (lambda rng, text: " ".join(rng.choice(WORDS, len(text) // 5)), False),
        (lambda rng, text: "the" if len(text) > 15 else "", False),  # more for longer audio
    ],
)
def test_a_run_depends_on_the_audio_whatever_its_wer(hypothesis, depends):
    rng = np.random.default_rng(1)
    assert depends_on_audio(p_of([hypothesis(rng, text) for text in REFERENCES])) is depends


def test_of_runs_that_understand_nothing_at_most_one_of_100_seems_to():
    p_values = []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        references, hypotheses = ([" ".join(rng.choice(WORDS, 2)) for _ in range(12)] for _ in range(2))
        p_values.append(p_of(hypotheses, references))
    assert np.mean([p <= LEVEL for p in p_values]) < 0.02
    assert 0.02 < np.mean([p <= 0.05 for p in p_values]) < 0.08


@pytest.mark.parametrize(("references", "is_known"), [(WORDS[:4], False), (WORDS[:5], True), (("yes",) * 50, False)])
def test_too_few_utterances_or_the_same_reference_for_all_tell_nothing(references, is_known):
    assert (p_of(references, references) is not None) == is_known
    assert p_of([""] * len(references), references) == (1 if is_known else None)
