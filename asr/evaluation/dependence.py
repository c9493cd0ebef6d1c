"""Whether hypotheses depend on the audio, from the texts alone: a permutation test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein

from asr.evaluation.wer import Utterance

LEVEL = 0.01
NUM_PERMUTATIONS = 199  # p-values are multiples of 0.5 %
BLOCK = 5  # utterances that change places; up to 9 if there are fewer than 10
MAX_UTTERANCES = 10_000


def depends_on_audio(p_value: float | None) -> bool | None:
    """Return whether hypotheses depend on the audio, by ``dependence_p`` at the level of 1 %; None if it is unknown."""
    return None if p_value is None else p_value <= LEVEL


def dependence_p(utterances: Iterable[Utterance]) -> float | None:
    """Return the p-value of the null hypothesis that what was recognized has nothing to do with what was said.

    The statistic is the number of character edits between hypotheses and references. It is compared with that of the
    same hypotheses in another order: they fit the references of other utterances as well if nothing was understood.
    They change places only among five utterances whose references are about equally long, so that a model that merely
    writes more for longer audio is not significant. Characters, because a model that spells no word right may have
    understood a part of all.

    The test is exact: the order as it was recognized is one of 200 that are equally likely, so that p is at most α in
    at most a share α of all runs that understand nothing. Equal hypotheses, or none, have p = 1. The same texts always
    give the same p. At most 10,000 utterances, evenly spaced by length, are used; they take 50,000 edit distances,
    about half a second.

    Args:
        utterances: of a test set, each id once.

    Returns:
        None if a perfect recognizer would not be significant at ``LEVEL`` either: there are fewer than five utterances,
        or nearly all have the same reference.

    Reference:
        Phipson and Smyth 2010, "Permutation p-values should never be zero", Statistical Applications in Genetics and
        Molecular Biology 9:39, for counting the order as it was recognized.
    """
    texts = [(" ".join(utterance.reference.split()), utterance.id, utterance.hypothesis) for utterance in utterances]
    texts.sort(key=lambda text: (len(text[0]), text[1]))
    if len(texts) > MAX_UTTERANCES:
        texts = [texts[place] for place in np.linspace(0, len(texts) - 1, MAX_UTTERANCES).astype(int)]
    references = [reference for reference, _, _ in texts]
    hypotheses = [" ".join(hypothesis.split()) for _, _, hypothesis in texts]
    p_value = _permutation_p(references, hypotheses)
    return None if p_value > LEVEL and _permutation_p(references, references) > LEVEL else p_value


def _permutation_p(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    rng, recognized, chance = np.random.default_rng(0), 0, np.zeros(NUM_PERMUTATIONS, np.int64)
    for block in np.array_split(np.arange(len(references)), max(1, len(references) // BLOCK)):
        edits = np.array(
            [[Levenshtein.distance(references[row], hypotheses[column]) for column in block] for row in block]
        )
        places = np.arange(len(block))
        orders = rng.permuted(np.tile(places, (NUM_PERMUTATIONS, 1)), axis=1)
        recognized += int(edits.trace())
        chance += edits[places, orders].sum(1)
    return float((1 + (chance <= recognized).sum()) / (1 + NUM_PERMUTATIONS))
