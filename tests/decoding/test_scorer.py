from itertools import product

import pytest
import torch

from asr.decoding.scorers import HotwordScorer, WeightedSum, select
from tests.decoding.test_hotwords import random_phrases
from tests.decoding.test_ngram import random_arpa, scorer_of
from tests.decoding.test_word_ngram import TOKENIZERS, WORDS
from tests.decoding.test_word_ngram import scorer_of as word_scorer_of

SCORERS = {
    "hotwords": lambda folder: HotwordScorer(random_phrases(9), 6),
    "n-grams": lambda folder: scorer_of(random_arpa(7, 3, ("a", "b", "c"), pruned=True), folder),
    "n-grams of words": lambda folder: word_scorer_of(
        random_arpa(3, 2, WORDS, pruned=False), folder, TOKENIZERS["characters"]
    ),
}


@pytest.mark.parametrize("make", SCORERS.values(), ids=SCORERS)
def test_hypotheses_do_not_mix(make, tmp_path):
    scorer, drawn = make(tmp_path), torch.randint(2, 5, (2, 3, 7), generator=torch.Generator().manual_seed(0))

    def totals(texts: torch.Tensor) -> torch.Tensor:
        state = scorer.start(len(texts), torch.device("cpu"))
        state, total = select(state, torch.zeros_like(texts[..., 0])), torch.zeros(texts.shape[:2], dtype=torch.float64)
        for tokens in texts.unbind(2):
            total += scorer.score(state, tokens.unsqueeze(2)).squeeze(2)
            state = scorer.advance(state, tokens)
        return total + scorer.end(state)

    together = totals(drawn)
    for row, slot in product(range(2), range(3)):
        alone = totals(drawn[row : row + 1, slot : slot + 1])
        torch.testing.assert_close(together[row, slot], alone[0, 0])


class Counting:
    """Adds a step per token that has come before, and the number of tokens at the end."""

    def __init__(self, step: float) -> None:
        self.step = step

    def start(self, batch_size, device):
        return (torch.zeros(batch_size, 1, 2, device=device),)

    def score(self, state, tokens):
        return (state[0][..., :1] * self.step).expand(tokens.shape)

    def advance(self, state, tokens):
        return (state[0] + (tokens != 0).unsqueeze(2),)

    def end(self, state):
        return state[0][..., 0]


def test_a_sum_of_sums_weighs_each_scorer_and_counts_tokens():
    inner = WeightedSum([(Counting(1.0), 2.0)], token_bonus=0.25)
    scorer = WeightedSum([(inner, 0.5), (Counting(10.0), -1.0)], token_bonus=3.0)
    state = scorer.start(1, torch.device("cpu"))
    state = scorer.advance(select(state, torch.zeros(1, 3, dtype=torch.int64)), torch.tensor([[0, 5, 7]]))
    state = scorer.advance(select(state, torch.tensor([[2, 0]])), torch.tensor([[4, 0]]))
    found = scorer.score(state, torch.tensor([[[1, 2], [3, 4]]]))
    twice = 0.5 * (2 * 2 + 0.25) - 20 + 3
    never = 0.5 * 0.25 + 3
    torch.testing.assert_close(found, torch.tensor([[[twice] * 2, [never] * 2]], dtype=torch.float64))
    torch.testing.assert_close(scorer.end(state), torch.tensor([[0.5 * 2 * 2 - 2, 0.0]], dtype=torch.float64))
