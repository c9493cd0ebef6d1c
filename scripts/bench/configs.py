"""Options from words, and parts of runs, built as asr-train builds them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

import optim
from asr.commands.app import quieten
from asr.data.loading.loader import Batch, LoaderFactory
from asr.data.preparation.prepared import PreparedData
from asr.decoding.greedy import CtcGreedy
from asr.features.log_mel import GlobalNorm
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.recognizer import Recognizer
from asr.run.command_line import config_folder
from asr.run.compose import Composed
from asr.run.data import data_for_run
from asr.run.instantiate import build_component
from asr.run.options import RunOptions
from asr.run.parts import build_data_parts
from asr.text.tokenizer import CharacterTokenizerTrainer
from asr.training.module import TrainingModule

NUM_FEATURES, FRAMES_PER_S = 80, 100
LATE = 20_000.0  # batches: nearly all that is scheduled has its last value


def options_from(*words: str, command: str = "train") -> Any:
    """Return the options of a command, composed from words and checked."""
    quieten()
    with initialize_config_dir(str(config_folder(command)), version_base="1.3"):
        return Composed.of(command, compose(command, list(words), return_hydra_config=True)).options


def build_encoder(name: str) -> Any:
    """Return an encoder of configs/encoder; a Zipformer is late in training."""
    torch.manual_seed(0)
    encoder = build_component(options_from(f"encoder={name}").encoder, "encoder", num_features=NUM_FEATURES)
    if isinstance(encoder, ZipformerEncoder):
        encoder.set_trained_seconds(LATE * encoder.ref_duration_s)
    return encoder


def with_head(encoder: Any, head: Any, augment: Any = None, num_features: int = NUM_FEATURES) -> Recognizer:
    """Return a recognizer that does not normalize its features."""
    return Recognizer(encoder, head, GlobalNorm([0.0] * num_features, [1.0] * num_features), augment)


def batch_of(features: Tensor, tokens: Tensor, seconds: float, seed: int = 0) -> Batch:
    """Return a batch without padding of features (B, T, F), tokens (B, U) and the duration of each utterance."""
    size = len(features)
    num_frames, num_tokens = (torch.full((size,), tensor.shape[1]) for tensor in (features, tokens))
    names = tuple(map(str, range(size)))
    return Batch(features, num_frames, tokens, num_tokens, names, names, (None,) * size, size * seconds, seed)


def training_module(model: Recognizer, lr: float, max_duration_s: float) -> TrainingModule:
    """Return what trains a recognizer by AdamW."""
    updates = optim.grouped(partial(optim.AdamW, lr=lr)), optim.Constant
    tokenizer = CharacterTokenizerTrainer().train(["abc"])
    told: dict[str, Any] = {"dev_names": [], "max_duration_s": max_duration_s, "extra_state": {}}
    return TrainingModule(model, tokenizer, CtcGreedy(), *updates, **told)


def loader(options: RunOptions) -> tuple[LoaderFactory, PreparedData, Any]:
    """Return what loads the data of a run, its prepared data, and how audio is perturbed."""
    prepared, parts = data_for_run(options, quiet=True), build_data_parts(options)
    return LoaderFactory(parts.features, prepared.tokenizer, parts.batch, parts.workers), prepared, parts.augmentation
