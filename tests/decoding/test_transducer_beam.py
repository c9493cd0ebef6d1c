"""Beam search for transducers against the sum over all alignments."""

import itertools
import math
from collections import defaultdict

import pytest
import torch

from asr.decoding.beam import TransducerBeam
from asr.decoding.scorers import WeightedSum
from asr.models.heads.transducer import TransducerHead
from tests.decoding.test_ctc_beam import Bigrams

VOCAB_SIZE = 4
WIDE = {"beam_size": 200, "beam_size_token": 10}


def make(seed: int) -> TransducerHead:
    torch.manual_seed(seed)
    head = TransducerHead(6, VOCAB_SIZE, predictor_dim=8, joiner_dim=8).eval()
    torch.nn.init.normal_(head.joiner.output_linear.weight, std=1.5)
    return head


def encodings(size: int, num_frames: int, seed: int) -> torch.Tensor:
    return 2 * torch.randn(size, num_frames, 6, generator=torch.Generator().manual_seed(seed))


def exhaustive(head: TransducerHead, frames: torch.Tensor) -> dict[tuple[int, ...], float]:
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
    beam, scorer = TransducerBeam(**WIDE), Bigrams(VOCAB_SIZE, seed)
    if with_scorer:
        beam.scorer = WeightedSum([(scorer, 0.5)])
    for row, length, found in zip(frames, lengths, beam(head, frames, torch.tensor(lengths)), strict=True):
        expected = exhaustive(head, row[:length])
        if with_scorer:
            expected = {text: score + 0.5 * scorer.of_text(text) for text, score in expected.items()}
        assert {tuple(one.tokens): one.score for one in found} == pytest.approx(expected, abs=1e-4)
        assert len(found) == len(expected)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@torch.inference_mode()
def test_a_token_stands_where_a_clearly_best_alignment_has_it():
    head, frames = make(5), encodings(1, 4, 5)
    parts, num_clear = head.project(frames[0]), 0
    for found in TransducerBeam(**WIDE)(head, frames, torch.tensor([4]))[0][:20]:
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


@torch.inference_mode()
def test_each_utterance_of_a_batch_is_decoded_as_alone():
    head, frames, lengths = make(1), encodings(5, 12, 1), torch.tensor([12, 7, 1, 9, 3])
    together = TransducerBeam()(head, frames, lengths)
    for row, length in enumerate(lengths.tolist()):
        (alone,) = TransducerBeam()(head, frames[row : row + 1, :length], lengths[row : row + 1])
        assert [one.tokens for one in alone] == [one.tokens for one in together[row]]
        assert alone[0].score == pytest.approx(together[row][0].score, abs=1e-5)
