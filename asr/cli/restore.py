"""A checkpoint → everything that decodes with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from asr.cli.errors import ConfigError
from asr.cli.parts import build_recogniser, part
from asr.data.loader import Workers
from asr.data.prepared import INDEX, PreparedData
from asr.data.reading import Reading
from asr.data.sampling import BatchSize
from asr.models.recogniser import Recogniser
from asr.text.normalise import TextNormalizer
from asr.text.tokenizer import tokenizer_from_state
from asr.training.checkpoints import LoadedCheckpoint, checkpoint_file, load_checkpoint
from asr.training.module import Decoder
from asr.training.run_folder import num_threads
from asr.training.session import default_device
from asr.training.weights import check_kind, choose_weights


@dataclass(frozen=True)
class Restored:
    """A recogniser with the text side, the features and the decoder that it was trained with."""

    checkpoint: LoadedCheckpoint
    recogniser: Recogniser
    decoder: Decoder
    text: TextNormalizer
    reading: Reading

    def prepared(self) -> PreparedData:
        """Return the data that the run was trained on."""
        folder = Path(self.checkpoint.data["folder"])
        if not (folder / INDEX).is_file():
            raise ConfigError(f"the data of this run is no longer at {folder}; say what to decode: manifest=PATH")
        return PreparedData.load(folder)


def recogniser_of(checkpoint: LoadedCheckpoint) -> Recogniser:
    """Return the recogniser of a checkpoint, in evaluation mode.

    Raises:
        ConfigError: its weights do not fit its config.
    """
    vocab_size = tokenizer_from_state(checkpoint.tokenizer).vocab_size
    with _refusing_other_weights(checkpoint.path):
        width = len(checkpoint.weights["normalise.mean"])
        recogniser = build_recogniser(checkpoint.config, vocab_size, [0.0] * width, [1.0] * width)
        recogniser.load_state_dict(checkpoint.weights)
    return recogniser.eval()


@contextlib.contextmanager
def _refusing_other_weights(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"{path}: its weights do not fit its config: {error}") from error


def restore(options: DictConfig) -> Restored:
    """Rebuild what ``run=`` names, for decoding with the options of the command."""
    torch.set_num_threads(num_threads(options.torch_threads, options.num_workers))
    check_kind(options.weights, options.average_since)
    checkpoint = load_checkpoint(checkpoint_file(options.run))
    with _refusing_other_weights(checkpoint.path):
        checkpoint = choose_weights(checkpoint, options.weights, options.average_since)
    config: Mapping[str, Any] = checkpoint.config
    given = options.get("decoder")
    reading = Reading(
        features=part(config, "features"),
        tokenizer=tokenizer_from_state(checkpoint.tokenizer),
        batch=BatchSize(options.batch_duration_s),
        workers=Workers(options.num_workers),
    )
    return Restored(
        checkpoint,
        recogniser_of(checkpoint).to(default_device()),
        part(config if given is None else {"decoder": dict(given)}, "decoder"),
        part(config, "data.text"),
        reading,
    )
