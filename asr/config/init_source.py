"""``init=PATH``: the model that a training starts from, read and compared with the config before any work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from asr.config.build import outline_recognizer, part
from asr.config.own_code import check_restored
from asr.config.pretrained import WAVEFORM, is_pretrained_config
from asr.data.features import Features
from asr.data.preparation.fingerprint import describe_file
from asr.errors import ConfigError
from asr.models.icefall_weights import encoder_weights, icefall_state
from asr.models.pretrained import check_finite
from asr.plain_data import at, read_json
from asr.processes import is_first_process
from asr.run_folder import INIT_RECORD, update_files
from asr.safe_io import named_path, write_whole
from asr.text.tokenizer import CharacterTokenizer, SentencePieceFile, Tokenizer, tokenizer_from_state
from asr.training.checkpoints import LoadedCheckpoint, checkpoint_file, choose_weights, load_checkpoint
from asr.training.initial_weights import (
    LEFT,
    NEW,
    OTHER_SHAPE,
    TAKEN,
    TensorMatch,
    match_tensors,
    summary,
    take,
    take_tokens,
    write_matches,
)

if TYPE_CHECKING:
    from asr.training.module import TrainingModule

ICEFALL = ".pt"  # how files of icefall's models end; ours end with .ckpt
CONFIG = "config.json"  # of a folder of transformers
ICEFALL_FEATURES = (80, 16_000, 0.01)
OF_FILE = f"{SentencePieceFile.__module__}.{SentencePieceFile.__name__}"


@dataclass(frozen=True)
class Source:
    """A trained model to start from.

    Attributes:
        name: of the model, for messages.
        file: that holds it, without links.
        weights: by the names of a recognizer's.
        tokenizer: of the model; None: not known.
    """

    name: str
    file: Path
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None


def kept_tokenizer(
    config: Mapping[str, Any], existing_run_dir: Path | None = None, checkpoint: LoadedCheckpoint | None = None
) -> Tokenizer | None:
    """Return the tokenizer of the ``init`` source or of the run's checkpoint; None: train it, or read its file.

    The checkpoints of a run hold its tokenizer; a file of the user's may have been moved since.

    Args:
        config: of the run.
        existing_run_dir: folder of the run, if it has begun.
        checkpoint: of the run, from which it is resumed.

    Raises:
        ConfigError: there is no source, or it has no tokenizer.
    """
    keep_tokenizer, is_file = at(config, "init", "keep_tokenizer"), at(config, "tokenizer", "_target_") == OF_FILE
    if not keep_tokenizer and not is_file:
        return None
    if checkpoint is None and not keep_tokenizer:
        return None
    if checkpoint is None:
        path = _place(config, existing_run_dir)
        if path is None:
            raise ConfigError("init.keep_tokenizer: there is no source whose tokenizer could be kept; give init=PATH")
        if path.endswith(ICEFALL):
            raise ConfigError(
                f"init.keep_tokenizer: {path} contains no tokenizer; asr-convert makes a checkpoint of it and its "
                "tokenizer"
            )
        checkpoint = load_source(path)
    return tokenizer_from_state(checkpoint.tokenizer)


def read_source(
    config: Mapping[str, Any], features: Features, state: Mapping[str, Tensor], existing_run_dir: Path | None = None
) -> Source | None:
    """Return the model that ``init=PATH`` names; None if the run starts from nothing, or from a checkpoint of its own.

    Args:
        config: of the run.
        features: of the run.
        state: state dict of the run's recognizer; only shapes are read.
        existing_run_dir: folder of the run, if it has begun.

    Raises:
        ConfigError: the model cannot be read, needs other features, or nothing of its encoder fits.
    """
    path = _place(config, existing_run_dir)
    if path is None or (existing_run_dir is not None and update_files(existing_run_dir / "checkpoints")):
        return None
    if path.endswith(ICEFALL):
        _check_features(path, features, *ICEFALL_FEATURES)
        weights = _icefall_weights(named_path(path), state)
        return Source(path, named_path(path).resolve(), weights, None)
    checkpoint = load_source(path)
    if checkpoint.path.name == CONFIG and not is_pretrained_config(config):
        raise ConfigError(f"init: {path} is a model of transformers; give encoder=pretrained encoder.model={path} too")
    check_restored({"features": checkpoint.config.get("features")}, checkpoint.path)  # only the features are built
    try:
        checkpoint = choose_weights(checkpoint, config["init"]["weights"])
        saved = part(checkpoint.config, "features")
        tokenizer = tokenizer_from_state(checkpoint.tokenizer)
    except ValueError as error:
        raise ConfigError(f"init: {checkpoint.path}: {error}") from error
    check_finite(checkpoint.weights, checkpoint.path)
    _check_features(str(checkpoint.path), features, saved.num_features, saved.sampling_rate_hz, saved.frame_shift_s)
    if checkpoint.path.name != CONFIG:  # a transformers model is the encoder itself, and its head the source
        _refuse_other_base(checkpoint, config)
        _refuse_other_encoder(checkpoint.path, match_tensors(state, checkpoint.weights, ()))
    name = f"{checkpoint.path} ({checkpoint.described}, update {checkpoint.update})"
    return Source(name, checkpoint.path.resolve(), checkpoint.weights, tokenizer)


def load_source(path: str) -> LoadedCheckpoint:
    """Return the checkpoint that ``init=PATH`` names, or as one the CTC head of a folder of transformers.

    Raises:
        ValueError: it cannot be read.
    """
    folder = named_path(path)
    folder = folder.parent if folder.name == CONFIG else folder
    if not (folder / CONFIG).is_file():
        return load_checkpoint(checkpoint_file(path, "init"))
    # transformers is an extra
    from asr.models.pretrained import ctc_head, find_snapshot

    snapshot = find_snapshot(str(folder))
    pieces, weights = ctc_head(snapshot)
    tokenizer = CharacterTokenizer(pieces).state()
    features = {"_target_": WAVEFORM, "sampling_rate_hz": snapshot.inputs().get("sampling_rate", 16_000)}
    return LoadedCheckpoint(folder / CONFIG, weights, {"features": features}, tokenizer, {}, 0)


def record_source(source: Source, folder: Path) -> None:
    """Record which file a run starts from: links that led there may lead elsewhere when it is resumed, or compared."""
    written = {"path": str(source.file), **describe_file(source.file)}
    write_whole(folder / INIT_RECORD, json.dumps(written, ensure_ascii=False, indent=1) + "\n")


def _place(config: Mapping[str, Any], existing_run_dir: Path | None) -> str | None:
    """Return where the source is."""
    if existing_run_dir is not None and (existing_run_dir / INIT_RECORD).is_file():
        recorded: str = read_json(existing_run_dir / INIT_RECORD)["path"]
        return recorded
    place: str | None = at(config, "init", "path")
    return place


def start_from(source: Source, module: TrainingModule, config: Mapping[str, Any], run_dir: Path) -> str:
    """Take over the weights of a model; return what was taken, which ``init.tsv`` in the run's folder lists."""
    state_dict, tokenizer = module.recognizer.state_dict(), module.tokenizer
    if source.file.name == CONFIG:  # the model of transformers is the encoder itself
        state_dict = {name: weight for name, weight in state_dict.items() if name.startswith("head.")}
    axes = {}
    source_pieces = [] if source.tokenizer is None else source.tokenizer.pieces
    if source_pieces != tokenizer.pieces:
        num_features = len(module.recognizer.normalize.mean)
        larger = outline_recognizer(config, tokenizer.vocab_size + 1, num_features).state_dict()
        sizes = {name: zip(state_dict[name].shape, larger[name].shape, strict=True) for name in state_dict}
        axes = {name: axis for name, pairs in sizes.items() for axis, (size, more) in enumerate(pairs) if size != more}
    decided = match_tensors(state_dict, source.weights, axes)
    take(module.recognizer, source.weights, decided)
    num_shared = take_tokens(module.recognizer, source.weights, axes, tokenizer.pieces, source_pieces)
    of_tokens = f", with {num_shared} of {tokenizer.vocab_size} tokens as in the source" if num_shared and axes else ""
    table = run_dir / "init.tsv"
    if is_first_process():
        write_matches(table, decided)
    return f"init: {source.name}: {summary(decided)}{of_tokens}; the table of all is {table}"


def _icefall_weights(path: Path, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        weights, _ = encoder_weights(icefall_state(path), state_dict)
    except ValueError as error:
        raise ConfigError(f"init: {path}: {error}") from error
    # buffers that icefall does not save are as in the outline, without values
    return {name: weight for name, weight in weights.items() if not weight.is_meta}


def _check_features(
    source: str, features: Features, num_features: int, sampling_rate_hz: int, frame_shift_s: float
) -> None:
    kinds = ["audio" if rate_hz else "stored features" for rate_hz in (sampling_rate_hz, features.sampling_rate_hz)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"init: {source} was trained on {kinds[0]}, but this run reads {kinds[1]}; choose another model"
        )
    named = ("mel bins, or numbers per frame", "sampling_rate_hz", "frame_shift_s")
    values = features.num_features, features.sampling_rate_hz, features.frame_shift_s
    for name, value, needed in zip(named, values, (num_features, sampling_rate_hz, frame_shift_s), strict=True):
        if value != needed:
            how = f", as by data.sampling_rate_hz={needed}" if name == "sampling_rate_hz" else ""
            raise ConfigError(
                f"init: {source} was trained on features with {name} {needed}, but here it is {value}; choose features "
                f"like those of the model{how}"
            )


def _refuse_other_base(checkpoint: LoadedCheckpoint, config: Mapping[str, Any]) -> None:
    """Refuse weights that were trained on top of another pretrained encoder than this run's."""
    source_sha256, run_sha256 = (at(node, "encoder", "source", "sha256") for node in (checkpoint.config, config))
    if source_sha256 != run_sha256 and at(checkpoint.config, "encoder", "train") not in (None, "all"):
        model = at(checkpoint.config, "encoder", "model")
        raise ConfigError(
            f"init: {checkpoint.path} holds only what was trained on top of {model!r}, which this run does not "
            f"have; give encoder=pretrained encoder.model={model}"
        )


def _refuse_other_encoder(path: Path, decided: Sequence[TensorMatch]) -> None:
    """Refuse an encoder of another kind or width; one with more or fewer layers shares the others."""
    matches = [match for match in decided if match.name.startswith("encoder.") and match.outcome != LEFT]
    misfits = [match for match in matches if match.outcome == NEW]
    shared = sum(match.outcome == TAKEN for match in matches)
    if shared <= sum(match.reason.startswith(OTHER_SHAPE) for match in misfits):
        raise ConfigError(
            f"init: the encoder of {path} is different: {shared} of {len(matches)} tensors fit; {misfits[0].name} "
            f"is {list(misfits[0].shape)} here, {misfits[0].reason}; choose the same encoder, with the same options"
        )
