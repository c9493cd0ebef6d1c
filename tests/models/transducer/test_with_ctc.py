"""A transducer with CTC: what the loss is made of."""

import pytest
import torch

from asr.models.heads.ctc import CrCtcHead, CtcHead
from asr.models.heads.transducer import TransducerCtcHead, TransducerHead

NUM_FRAMES, TOKENS, NUM_TOKENS = torch.tensor([7, 5]), torch.tensor([[1, 2, 1], [3, 0, 0]]), torch.tensor([3, 1])
SIZES = {"d_model": 5, "vocab_size": 4}


def make(**options) -> TransducerCtcHead:
    torch.manual_seed(0)
    return TransducerCtcHead(**SIZES, predictor_dim=8, joiner_dim=6, ctc_dropout=0.0, **options)


@pytest.mark.parametrize("consistency_weight", [0.0, 0.3])
def test_the_loss_is_the_transducers_of_each_view_and_a_share_of_ctcs(consistency_weight):
    head = make(ctc_weight=0.7, consistency_weight=consistency_weight)
    plain = TransducerHead(**SIZES, predictor_dim=8, joiner_dim=6)
    plain.load_state_dict({name: value for name, value in head.state_dict().items() if not name.startswith("ctc.")})
    ctc = CrCtcHead(**SIZES, consistency_weight=0.3) if consistency_weight else CtcHead(**SIZES)
    ctc.load_state_dict(head.ctc.state_dict())
    encodings, lengths = torch.randn(2 * head.num_views, 7, 5), NUM_FRAMES.repeat(head.num_views)
    found = head.loss(encodings, lengths, TOKENS, NUM_TOKENS)
    views = [plain.loss(view, NUM_FRAMES, TOKENS, NUM_TOKENS).total for view in encodings.chunk(head.num_views)]
    expected = sum(views) / len(views) + 0.7 * ctc.loss(encodings, lengths, TOKENS, NUM_TOKENS).total
    torch.testing.assert_close(found.total, expected)
    assert tuple(found.parts) == head.loss_names == ("simple", "pruned", *ctc.loss_names)
