"""Trainings of the tiny recognizer with heads that need more than one view or one layer."""

from __future__ import annotations

from asr.data.loading.loader import Batch
from asr.decoding.greedy import TransducerGreedy
from asr.features.log_mel import GlobalNorm
from asr.features.specaugment import SpecAugment
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.ctc import CrCtcHead, CtcAttentionHead, CtcHead
from asr.models.heads.transducer import TransducerCtcHead, TransducerHead
from asr.models.recognizer import Recognizer
from asr.training.module import TrainingModule
from tests.training.tiny import NUM_FEATURES, TOKENIZER, batch_of, tiny_module

HEADS = {
    "two views": lambda: CrCtcHead(12, TOKENIZER.vocab_size),
    "two layers": lambda: CtcHead(12, TOKENIZER.vocab_size, intermediate_layers=[1]),
    "two views of two layers": lambda: CrCtcHead(12, TOKENIZER.vocab_size, intermediate_layers=[1]),
    "attention": lambda: CtcAttentionHead(12, TOKENIZER.vocab_size, 1, 2, 16, dropout=0.2),
    "transducer that warms up": lambda: TransducerHead(12, TOKENIZER.vocab_size, 8, 8, ref_duration_s=0.01),
    "transducer and two views": lambda: TransducerCtcHead(12, TOKENIZER.vocab_size, 8, 8, consistency_weight=0.2),
}


def module_with(head: str, dropout: float) -> TrainingModule:
    module = tiny_module()
    module.recognizer = Recognizer(
        TransformerEncoder(NUM_FEATURES, 12, 2, 2, 16, dropout=dropout, subsampling_channels=2),
        HEADS[head](),
        GlobalNorm([0.0] * NUM_FEATURES, [1.0] * NUM_FEATURES),
        SpecAugment(max_feature_bins=3),
    )
    if not isinstance(module.recognizer.head, module.decoder.needs):
        module.decoder = TransducerGreedy()
    return module


def share_of(rank: int) -> list[Batch]:
    """Return the micro-batches of one of two processes, which hold unequally many utterances."""
    lengths = ((60, 40), (60, 52, 33))[rank]
    return [batch_of(*lengths, seed=2 * update + rank) for update in range(3)]
