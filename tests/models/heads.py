"""Every head, small: one row each. The contracts in test_heads.py run for all, with every encoder that fits."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from asr.models.heads.ctc import CrCtcHead, CtcAttentionHead, CtcHead
from asr.models.heads.transducer import TransducerCtcHead, TransducerHead

VOCAB_SIZE = 7
SMALL = {"predictor_dim": 16, "joiner_dim": 16, "warmup_batches": 0.0}


@dataclass(frozen=True)
class HeadCase:
    """A head, and whether it needs the inner layers of an encoder."""

    name: str
    make: Callable[[int], nn.Module]
    needs_layers: bool = False


CASES = [
    HeadCase("ctc", lambda d_model: CtcHead(d_model, VOCAB_SIZE)),
    HeadCase("inter_ctc", lambda d_model: CtcHead(d_model, VOCAB_SIZE, intermediate_layers=[1]), needs_layers=True),
    HeadCase("cr_ctc", lambda d_model: CrCtcHead(d_model, VOCAB_SIZE)),
    HeadCase("ctc_attention", lambda d_model: CtcAttentionHead(d_model, VOCAB_SIZE, 2, 4, 16, dropout=0.0)),
    HeadCase("transducer", lambda d_model: TransducerHead(d_model, VOCAB_SIZE, **SMALL)),
    HeadCase("transducer, exact", lambda d_model: TransducerHead(d_model, VOCAB_SIZE, prune_range=None, **SMALL)),
    HeadCase("transducer_ctc", lambda d_model: TransducerCtcHead(d_model, VOCAB_SIZE, **SMALL)),
    HeadCase(
        "cr_ctc_transducer", lambda d_model: TransducerCtcHead(d_model, VOCAB_SIZE, consistency_weight=0.2, **SMALL)
    ),
]
