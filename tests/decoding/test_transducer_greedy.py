"""Greedy search against a transducer whose every answer is written down."""

import pytest
import torch
from torch import Tensor

from asr.decoding.hypothesis import Hypothesis
from asr.decoding.transducer_greedy import TransducerGreedy
from asr.models.heads.transducer.head import TransducerHead

SURE = -0.1


class Scripted:
    """Emits, in each frame, the tokens of its encoding one after another, if they come after the right ones.

    An encoding holds the tokens that its frame has, as one number for each place; 0 is none.
    """

    context_size = 2

    def project(self, encodings: Tensor) -> Tensor:
        return encodings

    def predict(self, context: Tensor) -> Tensor:
        return context.float()

    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        log_probs = torch.full((len(frames), 10), -5.0)
        for row, (frame, context) in enumerate(zip(frames.long().tolist(), predictions.long().tolist(), strict=True)):
            wanted = [token for token in frame if token]
            done = wanted.index(context[-1]) + 1 if context[-1] in wanted else 0
            log_probs[row, wanted[done] if done < len(wanted) else 0] = SURE
        return log_probs


def found_in(*utterances: list[list[int]], max_symbols: int = 3, num_frames: list[int] | None = None):
    longest = max(map(len, utterances))
    padded = [frames + [[9, 0, 0]] * (longest - len(frames)) for frames in utterances]
    lengths = torch.tensor(num_frames or [len(frames) for frames in utterances])
    found = TransducerGreedy(max_symbols)(Scripted(), torch.tensor(padded, dtype=torch.float32), lengths)
    return [best for (best,) in found]


def test_tokens_are_emitted_in_their_frames_after_their_history():
    first, second = found_in([[1, 0, 0], [0, 0, 0], [2, 3, 0]], [[0, 0, 0], [4, 0, 0]])
    assert (first.tokens, first.frames) == ([1, 2, 3], [0, 2, 2])
    assert first.score == pytest.approx(6 * SURE)  # three blanks too
    assert first.log_probs == pytest.approx([SURE] * 3)
    assert (second.tokens, second.frames, second.score) == ([4], [1], pytest.approx(3 * SURE))


def test_a_frame_has_at_most_so_many_tokens():
    (found,) = found_in([[1, 2, 3], [3, 4, 0]], max_symbols=2)
    assert (found.tokens, found.frames) == ([1, 2, 3, 4], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="max_symbols must be at least 1 and at most 100, given 0"):
        TransducerGreedy(0)


def test_frames_after_the_end_are_not_decoded():
    first, second = found_in([[0, 0, 0], [0, 0, 0]], [[1, 0, 0]], num_frames=[2, 1])
    assert first == Hypothesis([], [], [], pytest.approx(2 * SURE))
    assert second.tokens == [1]


def test_each_utterance_of_a_batch_is_decoded_as_alone():
    torch.manual_seed(0)
    head = TransducerHead(6, 8, predictor_dim=8, joiner_dim=8).eval()
    torch.nn.init.normal_(head.joiner.output_linear.weight, std=2.0)
    encodings, num_frames = 3 * torch.randn(4, 12, 6), torch.tensor([12, 7, 1, 9])
    with torch.inference_mode():
        together = TransducerGreedy()(head, encodings, num_frames)
        for row, length in enumerate(num_frames.tolist()):
            ((alone,),) = TransducerGreedy()(head, encodings[row : row + 1, :length], num_frames[row : row + 1])
            assert (alone.tokens, alone.frames) == (together[row][0].tokens, together[row][0].frames)
    assert sum(len(best.tokens) for (best,) in together) > 10
