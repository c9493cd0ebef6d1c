"""Searches in pieces find what the search in the whole finds."""

import pytest
import torch

from asr.decoding.greedy import CtcGreedy, CtcStream, TransducerGreedy, TransducerStream
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerHead

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
