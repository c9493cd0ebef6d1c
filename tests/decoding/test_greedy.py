"""Greedy searches against one label after the other, as a whole and in pieces."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asr.decoding.greedy import CtcGreedy, CtcStream, Hypothesis, TransducerGreedy, TransducerStream
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerHead
from tests.decoding.test_beam import Scores


def log_probs_of(*paths: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(paths), 4).float().log_softmax(-1)


def found_in(log_probs: torch.Tensor, *num_frames: int) -> list[Hypothesis]:
    return [best for (best,) in CtcGreedy()(Scores(), log_probs, torch.tensor(num_frames))]


def test_repetitions_merge_and_blanks_separate_them():
    first, second = found_in(log_probs_of([1, 1, 0, 1, 2, 2, 3], [0, 0, 3, 3, 3, 0, 0]), 7, 7)
    assert (first.tokens, second.tokens) == ([1, 1, 2, 3], [3])


def test_frames_after_the_end_are_not_decoded():
    first, second = found_in(log_probs_of([1, 2, 3, 3], [2, 2, 2, 2]), 2, 0)
    assert first.tokens == [1, 2]
    assert second == Hypothesis([], [], [], 0)


def test_a_token_stands_where_it_is_most_probable_and_the_score_is_that_of_the_path():
    log_probs = torch.tensor([[[0.3, 0.7], [0.1, 0.9], [0.2, 0.8], [0.6, 0.4], [0.45, 0.55]]]).log()
    (found,) = found_in(log_probs, 5)
    assert (found.tokens, found.frames) == ([1, 1], [1, 4])
    torch.testing.assert_close(torch.tensor(found.log_probs).exp(), torch.tensor([0.9, 0.55]))
    torch.testing.assert_close(torch.tensor(found.score).exp(), torch.tensor(0.7 * 0.9 * 0.8 * 0.6 * 0.55))


def lively_head() -> TransducerHead:
    torch.manual_seed(0)
    head = TransducerHead(6, 8, predictor_dim=8, joiner_dim=8).eval()
    torch.nn.init.normal_(head.joiner.output_linear.weight, std=2.0)
    return head


def frame_by_frame(head: TransducerHead, encodings: Tensor, max_symbols: int) -> Hypothesis:
    """Return the path of one utterance, one label after the other."""
    tokens, frames, log_probs, score = [], [], [], 0.0
    for frame, encoding in enumerate(head.project(encodings)):
        for _ in range(max_symbols):
            context = torch.tensor([[-1, 0, *tokens][-2:]])
            log_prob, label = head.join(encoding, head.predict(context)[0]).max(dim=-1)
            score += float(log_prob)
            if not label:
                break
            tokens.append(int(label))
            frames.append(frame)
            log_probs.append(pytest.approx(float(log_prob), rel=1e-4))
    return Hypothesis(tokens, frames, log_probs, pytest.approx(score, rel=1e-4))


@pytest.mark.parametrize("max_symbols", [1, 2, 3])
@pytest.mark.parametrize("blank", [0.0, 3.0, 8.0])  # tokens in most frames, in some, and many frames without
def test_several_frames_at_once_have_the_tokens_of_one_after_the_other(blank, max_symbols):
    head = lively_head()
    head.joiner.output_linear.bias.data = F.pad(torch.zeros(7), (1, 0), value=blank)
    encodings, num_frames = 3 * torch.randn(4, 23, 6), torch.tensor([23, 17, 1, 0])
    with torch.inference_mode():
        for row, (found,) in enumerate(TransducerGreedy(max_symbols)(head, encodings, num_frames)):
            assert found == frame_by_frame(head, encodings[row, : num_frames[row]], max_symbols)


DIM, VOCABULARY, FRAMES = 8, 5, 60


def streams(seed: int):
    torch.manual_seed(seed)
    ctc = CtcHead(DIM, VOCABULARY).eval()
    transducer = TransducerHead(DIM, VOCABULARY, predictor_dim=8, joiner_dim=8, context_size=2 + seed % 2).eval()
    with torch.no_grad():
        # as many tokens as blanks
        transducer.joiner.output_linear.bias[0] += 1.0
    yield ctc, CtcGreedy(), CtcStream(ctc)
    yield transducer, TransducerGreedy(2), TransducerStream(transducer, 2)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_any_size_have_the_tokens_of_the_whole(seed):
    for head, greedy, stream in streams(seed):
        encodings = 3 * torch.randn(1, FRAMES, DIM)
        with torch.inference_mode():
            ((whole,),) = greedy(head, encodings, torch.tensor([FRAMES]))
            for piece in encodings.split([0, 1, 7, 20, 2, 30], dim=1):
                stream.accept(piece)
        assert stream.tokens == whole.tokens
        assert len(whole.tokens) > 5


def test_silence_is_counted_since_the_last_token():
    for head, greedy, stream in streams(0):
        encodings = 3 * torch.randn(1, FRAMES, DIM)
        with torch.inference_mode():
            ((whole,),) = greedy(head, encodings, torch.tensor([FRAMES]))
            stream.accept(encodings)
            if isinstance(head, CtcHead):
                labels = head.frame_log_probs(encodings)[0].argmax(dim=-1)
                assert stream.num_silent == FRAMES - 1 - int(labels.nonzero()[-1])
            else:
                assert stream.num_silent == FRAMES - 1 - whole.frames[-1]
