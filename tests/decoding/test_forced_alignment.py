"""Forced alignment against all paths of a text, one by one."""

import itertools
import math

import pytest
import torch

from asr.decoding.forced_alignment import align, align_ctc, align_transducer
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerHead


def ctc_paths(num_frames: int, text: list[int]):
    """Yield the label of each frame, of all paths whose repetitions merge to the text."""
    for path in itertools.product({0, *text}, repeat=num_frames):
        if [label for label, _ in itertools.groupby(path) if label] == text:
            yield path


@pytest.mark.parametrize("text", [[], [1], [2, 1], [2, 2], [1, 2, 1], [3, 3, 3]])
def test_the_ctc_alignment_is_the_best_of_all_paths(text):
    for seed in range(5):
        log_probs = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(seed)).mul(2).log_softmax(-1)
        best = max(ctc_paths(6, text), key=lambda path: sum(log_probs[0, range(6), path].tolist()))
        runs = itertools.groupby(enumerate(best), key=lambda pair: pair[1])
        spans = [[frame for frame, _ in run] for label, run in runs if label]
        # padding follows the text, and the frames
        padded = torch.cat((log_probs, torch.zeros(1, 3, 4)), dim=1)
        found = align_ctc(padded, torch.tensor([6]), torch.tensor([[*text, 3, 3]]), torch.tensor([len(text)]))
        assert found.first[0, : len(text)].tolist() == [span[0] for span in spans]
        assert found.last[0, : len(text)].tolist() == [span[-1] for span in spans]
        expected = [max(log_probs[0, span, token].tolist()) for token, span in zip(text, spans, strict=True)]
        assert found.log_probs[0, : len(text)].tolist() == pytest.approx(expected)
        assert found.score.item() == pytest.approx(sum(log_probs[0, range(6), best].tolist()), abs=1e-5)


def test_texts_of_a_batch_are_aligned_as_each_alone():
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn(4, 30, 5, generator=generator).mul(3).log_softmax(-1)
    tokens = torch.randint(1, 5, (4, 8), generator=generator)
    num_frames, num_tokens = torch.tensor([30, 17, 9, 30]), torch.tensor([8, 5, 0, 1])
    together = align_ctc(log_probs, num_frames, tokens, num_tokens)
    for row, (t, u) in enumerate(zip(num_frames.tolist(), num_tokens.tolist(), strict=True)):
        alone = align_ctc(log_probs[row : row + 1, :t], num_frames[[row]], tokens[row : row + 1, :u], num_tokens[[row]])
        assert torch.equal(together.first[row, :u], alone.first[0])
        assert torch.equal(together.last[row, :u], alone.last[0])
        torch.testing.assert_close(together.score[row], alone.score[0])


def test_a_text_with_too_many_tokens_has_no_alignment():
    log_probs, frames = torch.zeros(3, 4, 3).log_softmax(-1), torch.tensor([4, 2, 0])
    found = align_ctc(log_probs, frames, torch.tensor([[1, 1, 2], [1, 1, 2], [1, 1, 2]]), torch.tensor([3, 2, 1]))
    assert torch.isfinite(found.score).tolist() == [True, False, False]
    for head in (CtcHead(8, 6).eval(), TransducerHead(8, 6).eval()):
        frames, tokens = torch.tensor([0, 0]), torch.tensor([[3], [3]])
        found = align(head, torch.zeros(2, 0, 8), frames, tokens, torch.tensor([1, 0]))
        assert torch.isfinite(found.score).tolist() == [False, True]


def transducer_paths(num_frames: int, num_tokens: int):
    """Yield the frame of each token, of all paths."""
    return itertools.combinations_with_replacement(range(num_frames), num_tokens)


def test_the_alignment_of_a_transducer_is_the_best_of_all_paths():
    generator = torch.Generator().manual_seed(2)
    num_frames, num_tokens = torch.tensor([5, 3, 4]), torch.tensor([3, 2, 0])
    blank, label = (torch.randn(3, 5, 4, generator=generator).sub(1) for _ in range(2))
    found = align_transducer(blank, label, num_frames, num_tokens)
    for row, (t, u) in enumerate(zip(num_frames.tolist(), num_tokens.tolist(), strict=True)):

        def score(frames, row=row, t=t):
            places = [sum(frame <= now for frame in frames) for now in range(t)]
            blanks = blank[row, range(t), places].sum().item()
            return blanks + sum(label[row, frame, place].item() for place, frame in enumerate(frames))

        best = max(transducer_paths(t, u), key=score)
        assert tuple(found.first[row, :u].tolist()) == tuple(found.last[row, :u].tolist()) == best
        assert torch.equal(found.log_probs[row, :u], label[row, best, range(u)])
        assert found.score[row].item() == pytest.approx(score(best), abs=1e-5)


@pytest.mark.parametrize("make", [CtcHead, TransducerHead])
def test_a_head_is_aligned_by_what_it_offers(make):
    torch.manual_seed(0)
    head, encodings = make(8, 6).eval(), torch.randn(2, 12, 8)
    tokens, num_tokens = torch.tensor([[3, 4, 5], [2, 1, 1]]), torch.tensor([3, 1])
    with torch.no_grad():
        found = align(head, encodings, torch.tensor([12, 7]), tokens, num_tokens)
    assert all(0 <= frame < 7 for frame in (found.first[1, 0].item(), found.last[1, 0].item()))
    assert (found.first[0].diff() >= 0).all()
    assert (found.last >= found.first)[0].all()
    assert (found.log_probs[0] < 0).all()
    assert all(map(math.isfinite, found.score.tolist()))
