"""Greedy search against a transducer whose every answer is written down."""

import itertools

import pytest
import torch
import torch.nn.functional as F
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
        log_probs = torch.full((*frames.shape[:-1], 10), -5.0)
        contexts = predictions.expand(*frames.shape[:-1], -1)
        for place in itertools.product(*map(range, log_probs.shape[:-1])):
            wanted = [token for token in frames[place].long().tolist() if token]
            last = int(contexts[place][-1])
            done = wanted.index(last) + 1 if last in wanted else 0
            log_probs[(*place, wanted[done] if done < len(wanted) else 0)] = SURE
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
    with pytest.raises(ValueError, match="max_symbols"):
        TransducerGreedy(0)


def test_frames_after_the_end_are_not_decoded():
    first, second = found_in([[0, 0, 0], [0, 0, 0]], [[1, 0, 0]], num_frames=[2, 1])
    assert first == Hypothesis([], [], [], pytest.approx(2 * SURE))
    assert second.tokens == [1]


def lively_head() -> TransducerHead:
    torch.manual_seed(0)
    head = TransducerHead(6, 8, predictor_dim=8, joiner_dim=8).eval()
    torch.nn.init.normal_(head.joiner.output_linear.weight, std=2.0)
    return head


def frame_by_frame(head: TransducerHead, encodings: Tensor, max_symbols: int) -> tuple[list[int], list[int], float]:
    """Return tokens, their frames and the score of one utterance, one label after the other."""
    tokens, frames, score = [], [], 0.0
    for frame, encoding in enumerate(head.project(encodings)):
        for _ in range(max_symbols):
            context = torch.tensor([[-1, 0, *tokens][-2:]])
            log_prob, label = head.join(encoding, head.predict(context)[0]).max(dim=-1)
            score += float(log_prob)
            if not label:
                break
            tokens.append(int(label))
            frames.append(frame)
    return tokens, frames, score


@pytest.mark.parametrize("max_symbols", [1, 2, 3])
@pytest.mark.parametrize("blank", [0.0, 3.0, 8.0])  # tokens in most frames, in some, and many frames without
def test_several_frames_at_once_have_the_tokens_of_one_after_the_other(blank, max_symbols):
    head = lively_head()
    head.joiner.output_linear.bias.data = F.pad(torch.zeros(7), (1, 0), value=blank)
    encodings, num_frames = 3 * torch.randn(4, 23, 6), torch.tensor([23, 17, 1, 0])
    with torch.inference_mode():
        for row, (found,) in enumerate(TransducerGreedy(max_symbols)(head, encodings, num_frames)):
            tokens, frames, score = frame_by_frame(head, encodings[row, : num_frames[row]], max_symbols)
            assert (found.tokens, found.frames) == (tokens, frames)
            assert found.score == pytest.approx(score, rel=1e-4)


def test_each_utterance_of_a_batch_is_decoded_as_alone():
    head = lively_head()
    encodings, num_frames = 3 * torch.randn(4, 12, 6), torch.tensor([12, 7, 1, 9])
    with torch.inference_mode():
        together = TransducerGreedy()(head, encodings, num_frames)
        for row, length in enumerate(num_frames.tolist()):
            ((alone,),) = TransducerGreedy()(head, encodings[row : row + 1, :length], num_frames[row : row + 1])
            assert (alone.tokens, alone.frames) == (together[row][0].tokens, together[row][0].frames)
    assert sum(len(best.tokens) for (best,) in together) > 10
