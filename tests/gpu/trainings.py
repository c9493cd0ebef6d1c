"""Every encoder with every head that it fits, small, in a module that trains it."""

from itertools import product

import pytest

from asr.data.loading.loader import Batch
from asr.text.tokenizer import CharacterTokenizerTrainer
from asr.training.module import OptimizerFactory, TrainingModule
from tests.models import encoders, heads
from tests.models.test_heads import DECODERS, make
from tests.models.zipformer.sizes import TINY
from tests.training.tiny import adamw, batch_of, tiny_module

TOKENIZER = CharacterTokenizerTrainer().train(["abcde"])


ENCODERS = [
    *(case for case in encoders.CASES if case.name in ("transformer", "conformer")),
    encoders.EncoderCase("zipformer", lambda: encoders.make_zipformer(causal=False, **TINY), 9),
    encoders.EncoderCase("causal zipformer", lambda: encoders.make_zipformer(True, chunk_size=8, **TINY), 9),
]
PAIRS = [
    pytest.param(encoder, head, id=f"{encoder.name}-{head.name}")
    for encoder, head in product(ENCODERS, heads.CASES)
    if not (head.needs_layers and "zipformer" in encoder.name)
]


def module_of(
    encoder: encoders.EncoderCase, head: heads.HeadCase, optimizer_factory: OptimizerFactory = adamw
) -> TrainingModule:
    module = tiny_module(optimizer_factory)
    module.recognizer, module.tokenizer, module.dev_names = make(encoder, head), TOKENIZER, ["dev"]
    module.decoder = decoders_of(module)[0]
    return module


def decoders_of(module: TrainingModule) -> list:
    return [decoder for decoder in DECODERS if isinstance(module.recognizer.head, decoder.needs)]


def batch(*lengths: int, seed: int = 0) -> Batch:
    return batch_of(*lengths, seed=seed, num_features=encoders.NUM_FEATURES)
