"""Every encoder with every head that it fits, small, in a module that trains it."""

from __future__ import annotations

from itertools import product

import pytest

from asr.data.loading.batch import Batch
from asr.text.character import CharacterTokenizerTrainer
from asr.training.module import TrainingModule
from tests.models import encoders, heads
from tests.models.test_heads import DECODERS, make
from tests.training.tiny import batch_of, tiny_module

TOKENIZER = CharacterTokenizerTrainer().train(["abcde"])
ENCODERS = [case for case in encoders.CASES if case.name not in ("zipformer, causal", "transformer, at 50 Hz")]
PAIRS = [
    pytest.param(encoder, head, id=f"{encoder.name}-{head.name}")
    for encoder, head in product(ENCODERS, heads.CASES)
    if not (head.needs_layers and "zipformer" in encoder.name)
]


def module_of(encoder: encoders.EncoderCase, head: heads.HeadCase) -> TrainingModule:
    module = tiny_module()
    module.recognizer, module.tokenizer, module.dev_names = make(encoder, head), TOKENIZER, ["dev"]
    module.decoder = decoders_of(module)[0]
    return module


def decoders_of(module: TrainingModule) -> list:
    return [decoder for decoder in DECODERS if isinstance(module.recognizer.head, decoder.needs)]


def batch(*lengths: int, seed: int = 0) -> Batch:
    return batch_of(*lengths, seed=seed, num_features=encoders.NUM_FEATURES)
