"""Confidence intervals of a WER by resampling: how far it may be from the WER on unlimited data of the same kind."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asr.evaluation.wer import ErrorCounts, Score, Unit

MIN_RESAMPLES = 100  # with fewer the ends of an interval are too random
MAX_DRAWS = 2 * 10**8  # units drawn for one interval; takes about two seconds
CHUNK_DRAWS = 2**20  # units drawn at once; limits memory to about 25 MB


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a WER.

    Attributes:
        low: lower end, a fraction.
        high: upper end, a fraction.
        unit: what was resampled, or counted as independent.
        num_units: their number.
        level: share of such intervals that contain the true value, for example 0.95.
        method: ``bootstrap``; ``exact upper bound`` if there is no error; ``none`` for a single utterance, which says
            nothing about others (then 0 to infinity).
    """

    low: float
    high: float
    unit: Literal["speaker", "utterance"] | Unit
    num_units: int
    level: float = 0.95
    method: Literal["bootstrap", "exact upper bound", "none"] = "bootstrap"


def bootstrap_interval(score: Score, *, num_resamples: int = 10_000, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the percentile bootstrap interval of a WER.

    Errors of one speaker depend on each other. So whole speakers are drawn with replacement if every utterance has a
    speaker and there are at least two; otherwise utterances. Draws without a reference word have no WER and do not
    count. With few units the interval is too narrow: with ten simulated speakers, 90 of 100 contained the true WER.

    Without any error every draw would give 0. Then the interval is one-sided and exact for independent words
    (Clopper and Pearson): its upper end is the WER at which no error in that many words has a probability of
    ``1 - level``.

    Args:
        score: errors per utterance.
        num_resamples: draws of the whole set; fewer for more than 20,000 units, so that ``MAX_DRAWS`` units are drawn:
            with 300,000 units the ends move by 5 % of the interval's half width from seed to seed.
        level: between 0 and 1, exclusive.
        seed: the same seed gives the same interval.

    Reference:
        Bisani and Ney 2004, "Bootstrap estimates for confidence intervals in ASR performance evaluation", for
        utterances; Liu and Peng 2020, "Statistical testing on ASR performance via blockwise bootstrap",
        arXiv:1912.09508, for speakers as blocks; Clopper and Pearson 1934, "The use of confidence or fiducial limits
        illustrated in the case of the binomial", Biometrika 26, for sets without errors.
    """
    unit, errors, words = _units(score)
    interval = interval_of_counts(unit, errors, words, num_resamples=num_resamples, level=level, seed=seed)
    return replace(interval, unit=score.unit) if interval.unit == "word" else interval


def interval_of_counts(
    unit: Literal["speaker", "utterance"],
    errors: NDArray[np.int64],
    words: NDArray[np.int64],
    *,
    num_resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the interval of ``bootstrap_interval`` from errors and words (U,) per unit."""
    if errors.sum() == 0:
        num_words = int(words.sum())
        high = -math.expm1(math.log1p(-level) / num_words)
        return Interval(0.0, high, "word", num_words, level, "exact upper bound")
    if len(errors) == 1:
        return Interval(0.0, math.inf, unit, 1, level, "none")
    num_resamples = min(num_resamples, max(MIN_RESAMPLES, MAX_DRAWS // len(errors)))
    rates = _resampled_rates(errors, words, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), unit, len(errors), level)


def _units(score: Score) -> tuple[Literal["speaker", "utterance"], NDArray[np.int64], NDArray[np.int64]]:
    """Return what is drawn, and the errors and reference words of each unit."""
    speakers = [item.utterance.speaker for item in score.utterances]
    by_speaker = all(speakers) and len(set(speakers)) > 1
    counts: dict[object, ErrorCounts] = defaultdict(ErrorCounts)
    for index, item in enumerate(score.utterances):
        counts[item.utterance.speaker if by_speaker else index] += item.words
    errors, words = zip(*((unit.errors, unit.num_reference) for unit in counts.values()), strict=True)
    return "speaker" if by_speaker else "utterance", np.array(errors), np.array(words)


def _resampled_rates(
    errors: NDArray[np.int64], words: NDArray[np.int64], num_resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rates = []
    rows = max(1, CHUNK_DRAWS // len(errors))
    for start in range(0, num_resamples, rows):
        drawn = rng.integers(len(errors), size=(min(rows, num_resamples - start), len(errors)))
        sum_errors, sum_words = errors[drawn].sum(axis=1), words[drawn].sum(axis=1)
        defined = sum_words > 0
        rates.append(sum_errors[defined] / sum_words[defined])
    return np.concatenate(rates)
