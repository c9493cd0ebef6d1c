import itertools
import math
from collections import defaultdict

import pytest
import torch

from asr.decoding.beam import CtcBeam
from asr.decoding.greedy import CtcGreedy, Hypothesis
from asr.decoding.scorers import WeightedSum

WIDE = {"beam_size": 200, "beam_size_token": 10, "blank_skip_threshold": 1.0}


class Scores:
    """Takes log-probabilities for encodings."""

    def frame_log_probs(self, encodings):
        return encodings


class Bigrams:
    """Scores a token by the one before it, and the last one by itself."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        table = torch.randn(2, vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed))
        self.follows, self.ends = table[0], table[1, 0]

    def start(self, batch_size, device):
        return torch.zeros(batch_size, 1, dtype=torch.int64)

    def score(self, state, tokens):
        return self.follows[state.unsqueeze(2), tokens]

    def advance(self, state, tokens):
        return torch.where(tokens == 0, state, tokens)

    def end(self, state):
        return self.ends[state]

    def of_prefix(self, tokens) -> float:
        return sum(float(self.follows[pair]) for pair in zip((0, *tokens), tokens, strict=False))

    def of_text(self, tokens) -> float:
        return self.of_prefix(tokens) + float(self.ends[tokens[-1] if tokens else 0])


def random_log_probs(*shape: int, seed: int, sharpness: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * sharpness).log_softmax(-1)


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(label for label, _ in itertools.groupby(path) if label)


def exhaustive(log_probs: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every text, summed over all paths."""
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        totals[collapsed(path)] += math.exp(sum(float(log_probs[t, label]) for t, label in enumerate(path)))
    return {text: math.log(total) for text, total in totals.items()}


def search(log_probs: torch.Tensor, *num_frames: int, scorer=None, **options) -> list[list[Hypothesis]]:
    beam = CtcBeam(**options)
    beam.scorer = scorer or beam.scorer
    return beam(Scores(), log_probs, torch.tensor(num_frames))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_scorer", [False, True])
def test_a_wide_beam_finds_every_text_with_the_sum_of_its_paths(seed, with_scorer):
    scorer = Bigrams(3, seed) if with_scorer else None
    log_probs, lengths = random_log_probs(7, 6, 3, seed=seed, sharpness=2.0), [6, 5, 4, 3, 2, 1, 0]
    for row, length, found in zip(log_probs, lengths, search(log_probs, *lengths, scorer=scorer, **WIDE), strict=True):
        expected = exhaustive(row[:length])
        if scorer is not None:
            expected = {text: score + scorer.of_text(text) for text, score in expected.items()}
        assert {tuple(one.tokens): one.score for one in found} == pytest.approx(expected, abs=1e-5)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def pruned_search(log_probs: torch.Tensor, beam_size: int, scorer: Bigrams) -> dict[tuple[int, ...], float]:
    """Return the scores of a beam search with dictionaries of prefixes, which keeps the best after each frame."""
    beam = {(): (1.0, 0.0)}
    for frame in log_probs.double().exp().tolist():
        grown: dict[tuple[int, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for prefix, (blank, nonblank) in beam.items():
            for label, prob in enumerate(frame):
                if label == 0:
                    more = {prefix: ((blank + nonblank) * prob, 0.0)}
                elif prefix[-1:] == (label,):
                    more = {prefix: (0.0, nonblank * prob), (*prefix, label): (0.0, blank * prob)}
                else:
                    more = {(*prefix, label): (0.0, (blank + nonblank) * prob)}
                for text, (ends_blank, ends_token) in more.items():
                    grown[text] = (grown[text][0] + ends_blank, grown[text][1] + ends_token)
        scores = {text: math.log(sum(both)) + scorer.of_prefix(text) for text, both in grown.items() if sum(both)}
        kept = sorted(scores, key=scores.__getitem__, reverse=True)[:beam_size]
        beam = {text: grown[text] for text in kept}
    return {text: math.log(sum(both)) + scorer.of_text(text) for text, both in beam.items()}


@pytest.mark.parametrize("seed", range(6))
def test_a_narrow_beam_keeps_the_prefixes_that_are_best_with_what_is_added(seed):
    scorer = Bigrams(5, seed)
    log_probs = random_log_probs(4, 12, 5, seed=seed, sharpness=2.0)
    options = {"beam_size": 4, "beam_size_token": 4, "blank_skip_threshold": 1.0}
    for row, found in zip(log_probs, search(log_probs, 12, 12, 12, 12, scorer=scorer, **options), strict=True):
        expected = pruned_search(row, 4, scorer)
        assert {tuple(one.tokens): one.score for one in found} == pytest.approx(expected, abs=1e-5)


def test_hypotheses_are_the_same_whatever_else_is_in_the_batch():
    log_probs, lengths = random_log_probs(6, 40, 9, seed=3, sharpness=3.0), [40, 31, 12, 40, 3, 0]
    scorer = WeightedSum([(Bigrams(9, 0), 0.5)], token_bonus=0.2)
    together = search(log_probs, *lengths, scorer=scorer)
    for row, length, found in zip(log_probs, lengths, together, strict=True):
        (alone,) = search(row[None, :length], length, scorer=scorer)
        assert [(one.tokens, one.frames) for one in alone] == [(one.tokens, one.frames) for one in found]
        assert [one.score for one in alone] == pytest.approx([one.score for one in found])


def labels(*path: int, blank: float = 0.9995) -> torch.Tensor:
    """Return log-probabilities of frames that are fairly sure of a label, and of blanks."""
    probs = torch.full((len(path), 4), (1 - blank) / 3)
    for t, label in enumerate(path):
        probs[t] = probs[t] if label == 0 else 0.02
        probs[t, label] = blank if label == 0 else 0.94
    return probs.log()[None]


def test_skipped_blanks_still_separate_tokens_and_count_in_the_score():
    path = (0, 0, 1, 0, 0, 1, 1, 2, 0, 3, 0, 0, 0)
    skipping, complete = search(labels(*path), 13)[0], search(labels(*path), 13, blank_skip_threshold=1.0)[0]
    assert skipping[0].tokens == complete[0].tokens == [1, 1, 2, 3]
    assert skipping[0].frames == complete[0].frames == [2, 5, 7, 9]
    assert skipping[0].score == pytest.approx(complete[0].score, abs=5e-3)


def test_tokens_stand_where_they_are_emitted_not_where_they_first_were_thought_of():
    """Every token has some probability in every frame, so that each prefix appears in the beam long before."""
    log_probs = labels(0, 0, 1, 0, 0, 0, 2, 2, 0, 1, 0, 0, blank=0.9)
    (best, *_) = search(log_probs, 12)[0]
    assert (best.tokens, best.frames) == ([1, 2, 1], [2, 6, 9])
    assert best.log_probs == pytest.approx([math.log(0.94)] * 3, abs=1e-5)
    greedy = CtcGreedy()(Scores(), log_probs, torch.tensor([12]))[0][0]
    assert greedy.tokens == best.tokens


def test_what_is_impossible_is_not_returned_and_does_not_multiply():
    log_probs = torch.tensor([[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]]).log()
    found = search(log_probs, 3, beam_size=8)[0]
    expected = {(): math.log(1 / 8), (1,): math.log(6 / 8), (1, 1): math.log(1 / 8)}
    assert {tuple(one.tokens): one.score for one in found} == pytest.approx(expected)


def test_a_search_that_finds_nothing_possible_still_returns_a_hypothesis():
    log_probs = torch.full((1, 2, 3), -math.inf)
    assert len(search(log_probs, 2)[0]) == 1
