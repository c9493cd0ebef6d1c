"""Greedy search against one label after the other."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asr.decoding.greedy import Hypothesis, TransducerGreedy
from asr.models.heads.transducer import TransducerHead


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
