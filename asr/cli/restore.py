"""A checkpoint → everything that decodes with it."""

from __future__ import annotations

from collections.abc import Mapping
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


def restore(options: DictConfig) -> Restored:
    """Rebuild what ``run=`` names, for decoding with the options of the command."""
    torch.set_num_threads(num_threads(options.torch_threads, options.num_workers))
    check_kind(options.weights, options.average_since)
    checkpoint = load_checkpoint(checkpoint_file(options.run))
    config: Mapping[str, Any] = checkpoint.config
    tokenizer = tokenizer_from_state(checkpoint.tokenizer)
    try:
        checkpoint = choose_weights(checkpoint, options.weights, options.average_since)
        width = len(checkpoint.weights["normalise.mean"])
        recogniser = build_recogniser(config, tokenizer.vocab_size, [0.0] * width, [1.0] * width)
        recogniser.load_state_dict(checkpoint.weights)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"{checkpoint.path}: its weights do not fit its config: {error}") from error
    given = options.get("decoder")
    reading = Reading(
        features=part(config, "features"),
        tokenizer=tokenizer,
        batch=BatchSize(options.batch_duration_s),
        workers=Workers(options.num_workers),
    )
    return Restored(
        checkpoint,
        recogniser.eval().to(default_device()),
        part(config if given is None else {"decoder": dict(given)}, "decoder"),
        part(config, "data.text"),
        reading,
    )
