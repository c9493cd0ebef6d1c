"""Beam searches against the sum over all alignments, and rescoring against the scores of both parts."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from functools import partial

import pytest
import torch

from asr.decoding.beam import AttentionRescoring, CtcBeam, TransducerBeam
from asr.decoding.greedy import CtcGreedy, Hypothesis
from asr.decoding.scorers import WeightedSum
from asr.models.heads.ctc import CtcAttentionHead
from asr.models.heads.transducer import TransducerHead

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


VOCAB_SIZE = 4
WIDE_TRANSDUCER = {"beam_size": 200, "beam_size_token": 10}


def make(seed: int) -> TransducerHead:
    torch.manual_seed(seed)
    head = TransducerHead(6, VOCAB_SIZE, predictor_dim=8, joiner_dim=8).eval()
    torch.nn.init.normal_(head.joiner.output_linear.weight, std=1.5)
    return head


def encodings(size: int, num_frames: int, seed: int) -> torch.Tensor:
    return 2 * torch.randn(size, num_frames, 6, generator=torch.Generator().manual_seed(seed))


def exhaustive_transducer(head: TransducerHead, frames: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every text, summed over all alignments of at most one token in a frame."""
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    parts = head.project(frames)
    for path in itertools.product(range(VOCAB_SIZE), repeat=len(frames)):
        text, total = [-1, 0], 0.0
        for frame, label in zip(parts, path, strict=True):
            total += float(head.join(frame, head.predict(torch.tensor([text[-2:]]))[0])[label])
            text += [label] if label else []
        totals[tuple(text[2:])] += math.exp(total)
    return {text: math.log(total) for text, total in totals.items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_scorer", [False, True])
@torch.inference_mode()
def test_a_wide_beam_finds_every_text_with_the_sum_of_its_alignments(seed, with_scorer):
    head, frames, lengths = make(seed), encodings(4, 4, seed), [4, 3, 1, 2]
    beam, scorer = TransducerBeam(**WIDE_TRANSDUCER), Bigrams(VOCAB_SIZE, seed)
    if with_scorer:
        beam.scorer = WeightedSum([(scorer, 0.5)])
    for row, length, found in zip(frames, lengths, beam(head, frames, torch.tensor(lengths)), strict=True):
        expected = exhaustive_transducer(head, row[:length])
        if with_scorer:
            expected = {text: score + 0.5 * scorer.of_text(text) for text, score in expected.items()}
        assert {tuple(one.tokens): one.score for one in found} == pytest.approx(expected, abs=1e-4)
        assert len(found) == len(expected)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@torch.inference_mode()
def test_a_token_stands_where_a_clearly_best_alignment_has_it():
    head, frames = make(5), encodings(1, 4, 5)
    parts, num_clear = head.project(frames[0]), 0
    for found in TransducerBeam(**WIDE_TRANSDUCER)(head, frames, torch.tensor([4]))[0][:20]:
        totals = {}
        for places in itertools.combinations(range(4), len(found.tokens)):
            labels = dict(zip(places, found.tokens, strict=True))
            text, scores = [-1, 0], []
            for t, frame in enumerate(parts):
                log_probs = head.join(frame, head.predict(torch.tensor([text[-2:]]))[0])
                scores.append(float(log_probs[labels.get(t, 0)]))
                text += [labels[t]] if t in labels else []
            totals[places] = sum(scores), [scores[t] for t in places]
        (best, second, *_) = [*sorted(totals, key=totals.get, reverse=True), None]
        if second is None or totals[best][0] - totals[second][0] > 1.5:
            num_clear += 1
            assert tuple(found.frames) == best
            assert found.log_probs == pytest.approx(totals[best][1], abs=1e-5)
    assert num_clear > 3


FOR_RESCORING = 2 * torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(2))


def make_rescoring() -> CtcAttentionHead:
    torch.manual_seed(0)
    head = CtcAttentionHead(8, 5, num_layers=1, num_heads=2, d_feedforward=16).eval()
    torch.nn.init.normal_(head.attention.project.weight, std=1.0)
    return head


@pytest.mark.parametrize("ctc_weight", [0.0, 0.4, 1.0])
@torch.inference_mode()
def test_texts_of_the_beam_are_ranked_by_the_weighted_sum_of_both_scores(ctc_weight):
    head, encodings, lengths = make_rescoring(), FOR_RESCORING, torch.tensor([9, 4, 6])
    beams = CtcBeam(beam_size=5)(head, encodings, lengths)
    found = AttentionRescoring(beam_size=5, ctc_weight=ctc_weight)(head, encodings, lengths)
    for row, (beam, rescored) in enumerate(zip(beams, found, strict=True)):
        expected = {}
        for one in beam:
            text = torch.tensor([one.tokens], dtype=torch.int64)
            log_prob = head.text_log_probs(
                encodings[row : row + 1], lengths[row : row + 1], text, torch.tensor([len(one.tokens)])
            )
            expected[tuple(one.tokens)] = ctc_weight * one.score + (1 - ctc_weight) * float(log_prob)
        assert {tuple(one.tokens): one.score for one in rescored} == pytest.approx(expected, abs=1e-4)
        assert [one.score for one in rescored] == sorted((one.score for one in rescored), reverse=True)
    if ctc_weight < 1:
        assert any(beam[0].tokens != rescored[0].tokens for beam, rescored in zip(beams, found, strict=True))


def scored_ctc_beam() -> CtcBeam:
    beam = CtcBeam()
    beam.scorer = WeightedSum([(Bigrams(9, 0), 0.5)], token_bonus=0.2)
    return beam


@pytest.mark.parametrize(
    ("make_decoder", "make_head", "frames", "lengths"),
    [
        (scored_ctc_beam, Scores, random_log_probs(6, 40, 9, seed=3, sharpness=3.0), [40, 31, 12, 40, 3, 0]),
        (TransducerBeam, partial(make, 1), encodings(5, 12, 1), [12, 7, 1, 9, 3]),
        (partial(AttentionRescoring, beam_size=5), make_rescoring, FOR_RESCORING, [9, 4, 6]),
    ],
    ids=["CTC", "transducer", "rescoring"],
)
@torch.inference_mode()
def test_each_utterance_of_a_batch_is_decoded_as_alone(make_decoder, make_head, frames, lengths):
    decoder, head = make_decoder(), make_head()
    for row, (length, together) in enumerate(zip(lengths, decoder(head, frames, torch.tensor(lengths)), strict=True)):
        (alone,) = decoder(head, frames[row : row + 1, :length], torch.tensor([length]))
        assert [(one.tokens, one.frames) for one in alone] == [(one.tokens, one.frames) for one in together]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together], abs=1e-4)
