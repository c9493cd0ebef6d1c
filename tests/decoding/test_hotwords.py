import itertools
import random
from collections.abc import Sequence

import pytest
import torch

from asr.decoding.scorers import HotwordScorer

SPACE = 2
Phrases = dict[tuple[int, ...], float]


def ending(text: list[int], phrase: tuple[int, ...]) -> bool:
    return len(phrase) <= len(text) and tuple(text[len(text) - len(phrase) :]) == phrase


def brute_force(
    text: list[int], phrases: Phrases, boundary: int | None, beginnings: Sequence[int] = ()
) -> tuple[float, float]:
    """Return what the complete phrases of a text add, and the best phrase that is not complete at its end."""
    first = () if boundary is None else (boundary,)
    text = [*first, *text]
    complete = [
        boost * len(phrase)
        for phrase, boost in phrases.items()
        for end in range(len(text) + 1)
        if ending(text[:end], first + phrase) and (not beginnings or end == len(text) or text[end] in beginnings)
    ]
    begun = [
        boost * length
        for phrase, boost in phrases.items()
        for length in range(len(phrase))
        if ending(text, first + phrase[:length])
    ]
    return sum(complete), max([0.0, *begun])


def scored(scorer: HotwordScorer, tokens: list[int]) -> tuple[list[float], float]:
    state, scores = scorer.start(1, torch.device("cpu")), []
    for token in tokens:
        scores.append(float(scorer.score(state, torch.tensor([[[3, token]]]))[0, 0, 1]))
        state = scorer.advance(scorer.advance(state, torch.tensor([[token]])), torch.tensor([[0]]))
    return scores, float(scorer.end(state))


def random_phrases(seed: int) -> Phrases:
    rng = random.Random(seed)
    return {tuple(rng.choices((2, 3, 4), k=rng.randint(1, 4))): rng.choice((0.5, 1.0, 2.25)) for _ in range(seed)}


@pytest.mark.parametrize(("boundary", "beginnings"), [(None, ()), (SPACE, ()), (SPACE, (SPACE,)), (None, (3, 5))])
@pytest.mark.parametrize("seed", [0, 1, 3, 6, 12])
def test_scores_equal_those_of_looking_at_the_whole_text_each_time(seed, boundary, beginnings):
    phrases = random_phrases(seed)
    scorer = HotwordScorer(phrases, 6, boundary, beginnings)
    for length, repeat in itertools.product(range(9), range(8)):
        text = random.Random(100 * length + repeat).choices((2, 3, 4, 5), weights=(3, 3, 3, 1), k=length)
        scores, end = scored(scorer, text)
        for place in range(length + 1):
            assert sum(scores[:place]) == pytest.approx(sum(brute_force(text[:place], phrases, boundary, beginnings)))
        assert sum(scores) + end == pytest.approx(brute_force(text, phrases, boundary, beginnings)[0])
