"""Parts of runs, built from configs/ as asr-train builds them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

import optim
from asr.commands.app import quieten
from asr.data.loading.batch import Batch
from asr.data.loading.loader import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.decoding.greedy import CtcGreedy
from asr.features.log_mel import GlobalNorm
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.recognizer import Recognizer
from asr.run.command_line import CONFIGS
from asr.run.data import data_for_run
from asr.run.parts import build_data_parts, part, plain
from asr.text.tokenizer import CharacterTokenizerTrainer
from asr.training.module import TrainingModule

NUM_FEATURES, FRAMES_PER_S = 80, 100
LATE = 20_000.0  # batches: nearly all that is scheduled has its last value


def composed(overrides: Sequence[str], name: str = "train") -> dict[str, Any]:
    """Return the config of asr-train, or a file of configs/, with overrides."""
    quieten()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return plain(compose(name, overrides=list(overrides)))


def encoder_options(name: str) -> dict[str, Any]:
    """Return the options of an encoder of configs/encoder."""
    return {key: value for key, value in composed([], f"encoder/{name}")["encoder"].items() if key != "_target_"}


def build_encoder(name: str) -> Any:
    """Return an encoder of configs/encoder; a Zipformer is late in training."""
    torch.manual_seed(0)
    encoder = part(composed([], f"encoder/{name}"), "encoder", num_features=NUM_FEATURES)
    if isinstance(encoder, ZipformerEncoder):
        encoder.set_batch_count(LATE * encoder.ref_duration_s)
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


def loader(config: dict[str, Any]) -> tuple[DataModule, PreparedData, Any]:
    """Return what loads the data of a run, its prepared data, and how audio is perturbed."""
    prepared, parts = data_for_run(config, quiet=True), build_data_parts(config)
    return DataModule(parts.features, prepared.tokenizer, parts.batch, parts.workers), prepared, parts.perturb
