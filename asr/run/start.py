"""How a run starts: new, from trained weights, or resumed; what has changed since, and whether it may."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from asr.data.features import Features
from asr.data.loading.augmentation import AudioAugmentation
from asr.data.preparation.prepared import PreparedData, describe_file
from asr.models.icefall_weights import encoder_weights, icefall_state
from asr.models.pretrained import check_finite
from asr.processes import Terminated, is_first_process
from asr.run.compose import ABSENT, Change, changes, completed, refuse_changes, saved_config, unaccepted
from asr.run.folder import INIT_RECORD, resume_command, update_files
from asr.run.instantiate import build_component
from asr.run.options import Encoder, Init, Options, ParameterRules, RunOptions, SourceOptions, Target
from asr.run.parts import DataParts, outline_recognizer
from asr.run.trust import check_restored, error_context, targets
from asr.text.tokenizer import CharacterTokenizer, SentencePieceFile, Tokenizer, tokenizer_from_state
from asr.training import checkpoints, initial_weights
from asr.training.optimizer_protocols import apply_to_checkpoint, calls_closure, replaces_params
from werdict.errors import ConfigError, PeerLost, first_line, is_out_of_memory, naming_place
from werdict.files import is_within, named_path, read_json, write_whole

if TYPE_CHECKING:
    from asr.training.module import TrainingModule

PRETRAINED = "asr.models.encoders.pretrained.PretrainedEncoder"
WAVEFORM = "asr.data.features.Waveform"
FOLLOWING = ("features", "data.sampling_rate_hz")  # not from the corpus


def base_folder(encoder: Encoder, place: object) -> str:
    """Return the folder that ``encoder.model=PATH`` names: where the pretrained model of a run is now.

    Raises:
        ConfigError: there is no such folder, or the run has no pretrained encoder.
    """
    if encoder.target != PRETRAINED:
        raise ConfigError(f"encoder.model={place}: the run has no pretrained encoder; leave it out")
    if not (folder := named_path(place)).is_dir():
        raise ConfigError(f"encoder.model: there is no folder {str(place)!r}; give the folder of the run's base model")
    return str(folder.resolve())


def without_gradient(encoder: Any) -> list[str]:
    """Return which parameters of a pretrained encoder on the meta device would be trained, but get no gradient."""
    with error_context("encoder", type(encoder)):
        encodings, _ = encoder(torch.zeros(2, 100, encoder.frame, device="meta"), torch.zeros(2, device="meta"))
        if encodings.requires_grad:
            encodings.sum().backward()
    without = [name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
    encoder.zero_grad()
    return without


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
    options: RunOptions, existing_run_dir: Path | None = None, checkpoint: checkpoints.LoadedCheckpoint | None = None
) -> Tokenizer | None:
    """Return the tokenizer of the ``init`` source or of the run's checkpoint; None: train it, or read its file.

    The checkpoints of a run hold its tokenizer; a file of the user's may have been moved since.

    Args:
        options: of the run.
        existing_run_dir: folder of the run, if it has begun.
        checkpoint: of the run, from which it is resumed.

    Raises:
        ConfigError: there is no source, or it has no tokenizer.
    """
    if not options.init.keep_tokenizer and (checkpoint is None or options.tokenizer.target != OF_FILE):
        return None
    if checkpoint is None:
        path = _place(options.init, existing_run_dir)
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
    options: RunOptions, features: Features, state: Mapping[str, Tensor], existing_run_dir: Path | None = None
) -> Source | None:
    """Return the model that ``init=PATH`` names; None if the run starts from nothing, or from a checkpoint of its own.

    Args:
        options: of the run.
        features: of the run.
        state: state dict of the run's recognizer; only shapes are read.
        existing_run_dir: folder of the run, if it has begun.

    Raises:
        ConfigError: the model cannot be read, needs other features, or nothing of its encoder fits.
    """
    path = _place(options.init, existing_run_dir)
    if path is None or (existing_run_dir is not None and update_files(existing_run_dir / "checkpoints")):
        return None
    if path.endswith(ICEFALL):
        _check_features(path, features, *ICEFALL_FEATURES)
        file = named_path(path)
        with naming_place(f"init: {file}"):
            weights, _ = encoder_weights(icefall_state(file), state)
        # buffers that icefall does not save are as in the outline, without values
        weights = {name: weight for name, weight in weights.items() if not weight.is_meta}
        return Source(path, file.resolve(), weights, None)
    checkpoint = load_source(path)
    if checkpoint.path.name == CONFIG and options.encoder.target != PRETRAINED:
        raise ConfigError(f"init: {path} is a model of transformers; give encoder=pretrained encoder.model={path} too")
    saved = source_options(checkpoint)
    with naming_place(f"init: {checkpoint.path}"):
        check_restored({"features": saved.features}, checkpoint.path)  # only the features are built
        checkpoint = checkpoints.choose_weights(checkpoint, options.init.weights)
        needed = build_component(saved.features, "features")
        tokenizer = tokenizer_from_state(checkpoint.tokenizer)
    check_finite(checkpoint.weights, checkpoint.path)
    _check_features(str(checkpoint.path), features, needed.num_features, needed.sampling_rate_hz, needed.frame_shift_s)
    if checkpoint.path.name != CONFIG:  # a transformers model is the encoder itself, and its head the source
        _refuse_other_base(checkpoint.path, saved.encoder, options.encoder)
        _refuse_other_encoder(checkpoint.path, initial_weights.match_tensors(state, checkpoint.weights, ()))
    name = f"{checkpoint.path} ({checkpoint.described}, update {checkpoint.update})"
    return Source(name, checkpoint.path.resolve(), checkpoint.weights, tokenizer)


def source_options(checkpoint: checkpoints.LoadedCheckpoint) -> SourceOptions:
    """Return what is asked of the options of the model to start from.

    Raises:
        ConfigError: they are refused.
    """
    with naming_place(f"init: {checkpoint.path}"):
        return saved_options(checkpoint, SourceOptions)


def saved_options(checkpoint: checkpoints.LoadedCheckpoint, kind: type[Options]) -> Options:
    """Return options of a checkpoint's run; those that were added since have their defaults.

    Raises:
        ConfigError: they are refused.
    """
    saved = completed(checkpoint.config)
    return kind.of({key: saved[key] for key in kind.model_fields if key in saved})


def load_source(path: str) -> checkpoints.LoadedCheckpoint:
    """Return the checkpoint that ``init=PATH`` names, or as one the CTC head of a folder of transformers.

    Raises:
        ValueError: it cannot be read.
    """
    folder = named_path(path)
    folder = folder.parent if folder.name == CONFIG else folder
    if not (folder / CONFIG).is_file():
        return checkpoints.load_checkpoint(checkpoints.checkpoint_file(path, "init"))
    # transformers is an extra
    from asr.models.pretrained import ctc_head, find_snapshot

    snapshot = find_snapshot(str(folder))
    pieces, weights = ctc_head(snapshot)
    tokenizer = CharacterTokenizer(pieces).state()
    features = {"_target_": WAVEFORM, "sampling_rate_hz": snapshot.inputs().get("sampling_rate", 16_000)}
    return checkpoints.LoadedCheckpoint(folder / CONFIG, weights, {"features": features}, tokenizer, {}, 0)


def record_source(source: Source, folder: Path) -> None:
    """Record which file a run starts from: links that led there may lead elsewhere when it is resumed, or compared."""
    written = {"path": str(source.file), **describe_file(source.file)}
    write_whole(folder / INIT_RECORD, json.dumps(written, ensure_ascii=False, indent=1) + "\n")


def _place(init: Init, existing_run_dir: Path | None) -> str | None:
    """Return where the source is."""
    if existing_run_dir is not None and (existing_run_dir / INIT_RECORD).is_file():
        recorded: str = read_json(existing_run_dir / INIT_RECORD)["path"]
        return recorded
    return init.path


def start_from(source: Source, module: TrainingModule, options: RunOptions, run_dir: Path) -> str:
    """Take over the weights of a model; return what was taken, which ``init.tsv`` in the run's folder lists."""
    state_dict, tokenizer = module.recognizer.state_dict(), module.tokenizer
    if source.file.name == CONFIG:  # the model of transformers is the encoder itself
        state_dict = {name: weight for name, weight in state_dict.items() if name.startswith("head.")}
    axes = {}
    source_pieces = [] if source.tokenizer is None else source.tokenizer.pieces
    if source_pieces != tokenizer.pieces:
        num_features = len(module.recognizer.normalize.mean)
        larger = outline_recognizer(options, tokenizer.vocab_size + 1, num_features).state_dict()
        sizes = {name: zip(state_dict[name].shape, larger[name].shape, strict=True) for name in state_dict}
        axes = {name: axis for name, pairs in sizes.items() for axis, (size, more) in enumerate(pairs) if size != more}
    decided = initial_weights.match_tensors(state_dict, source.weights, axes)
    initial_weights.take(module.recognizer, source.weights, decided)
    num_shared = initial_weights.take_tokens(module.recognizer, source.weights, axes, tokenizer.pieces, source_pieces)
    of_tokens = f", with {num_shared} of {tokenizer.vocab_size} tokens as in the source" if num_shared and axes else ""
    table = run_dir / "init.tsv"
    if is_first_process():
        initial_weights.write_matches(table, decided)
    return f"init: {source.name}: {initial_weights.summary(decided)}{of_tokens}; the table of all is {table}"


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


def _refuse_other_base(path: Path, saved: Encoder | None, encoder: Encoder) -> None:
    """Refuse weights that were trained on top of another pretrained encoder than this run's."""
    if saved is None or saved.target != PRETRAINED or saved.train == "all":
        return
    if encoder.target != PRETRAINED or encoder.source["sha256"] != saved.source["sha256"]:
        raise ConfigError(
            f"init: {path} holds only what was trained on top of {saved.model!r}, which this run does not have; give "
            f"encoder=pretrained encoder.model={saved.model}"
        )


def _refuse_other_encoder(path: Path, decided: Sequence[initial_weights.TensorMatch]) -> None:
    """Refuse an encoder of another kind or width; one with more or fewer layers shares the others."""
    matches = [
        match for match in decided if match.name.startswith("encoder.") and match.outcome != initial_weights.LEFT
    ]
    misfits = [match for match in matches if match.outcome == initial_weights.NEW]
    shared = sum(match.outcome == initial_weights.TAKEN for match in matches)
    if shared <= sum(match.reason.startswith(initial_weights.OTHER_SHAPE) for match in misfits):
        raise ConfigError(
            f"init: the encoder of {path} is different: {shared} of {len(matches)} tensors fit; {misfits[0].name} "
            f"is {list(misfits[0].shape)} here, {misfits[0].reason}; choose the same encoder, with the same options"
        )


LAST_RECORDED = "overrides.yaml"  # of the start of a run, which can be resumed from then on
UPDATES = ("optimizer", "parameter_rules", "schedule")  # groups of the config that make updates of gradients


def _refuse_other_targets(former: Target, current: Target, key: str) -> None:
    """Refuse another optimizer or transform: the names of its options and statistics may be the same by chance."""
    names = ([str(part["_target_"]) for _, part in targets(node)] for node in (former, current))
    for had, have in zip_longest(*names, fillvalue="none"):
        if had != have:
            raise ConfigError(
                f"resume: {key}: {had} in the run, {have} now: an optimizer cannot continue from the statistics of "
                "another one; leave out this change, or start a new run"
            )


@contextlib.contextmanager
def changes_explain_errors(folder: Path | None, options: RunOptions, anyway: bool) -> Iterator[None]:
    """Report changes of a resumed run instead of errors that they cause, such as data that were never prepared.

    Args:
        folder: folder of the resumed run; None for a new run.
        options: the present ones.
        anyway: the user accepts changes: errors are reported as they are.
    """
    try:
        yield
    except ValueError:
        if folder is not None:
            refuse_changes(unaccepted(changes(saved_config(folder), options.plain()), folder), anyway)
        raise


def changes_since(
    checkpoint: checkpoints.LoadedCheckpoint, options: RunOptions, parts: DataParts, prepared: PreparedData
) -> list[Change]:
    """Return what has changed since a checkpoint was saved: keys of the config, the data, and files of noise."""
    changed = changes(checkpoint.config, options.plain())
    if checkpoint.data["fingerprint"] != prepared.fingerprint:
        changed.append(Change("data", checkpoint.data["fingerprint"], prepared.fingerprint))
    files = parts.augmentation.digest() if isinstance(parts.augmentation, AudioAugmentation) else ""
    if checkpoint.data["noise"] != files:
        changed.append(Change("files of augment.audio", checkpoint.data["noise"] or ABSENT, files or ABSENT))
    return changed


def fit_checkpoint(
    checkpoint: checkpoints.LoadedCheckpoint, options: RunOptions, changed: Sequence[Change], module: TrainingModule
) -> None:
    """Apply changes to the content of a checkpoint, load it into a module, and try an update if its options changed.

    Training restores the weights, which the trial moves, once more.

    Raises:
        ConfigError: a part of the checkpoint does not fit, or the budget is below its updates; names ``changed``, the
            changes since it was saved.
    """
    if (budget := options.trainer.max_steps) < checkpoint.update:
        raise ConfigError(
            f"resume: trainer.max_steps={budget}, but the run has made {checkpoint.update} updates; give at least as "
            "many, or start a new run"
        )
    saved = saved_options(checkpoint, RunOptions)
    is_changed = any(is_within(change.key, UPDATES) for change in changed)
    if is_changed:
        _refuse_other_targets(saved.optimizer, options.optimizer, "optimizer")
        _refuse_other_targets(saved.parameter_rules, options.parameter_rules, "parameter_rules")
    state: Any = checkpoint.state
    try:
        checkpoints.load_weights(module.recognizer, checkpoint.weights)
        if checkpoint.tokenizer != module.tokenizer.state():
            raise ValueError("its tokenizer has other tokens")
        optimizer = module.take_optimizer()
        if is_changed:
            changed_keys = _changed_options(changed, [saved.parameter_rules, options.parameter_rules])
            schedule = apply_to_checkpoint(state, changed_keys, optimizer, module.schedule_factory)
        else:
            schedule = module.schedule_factory(optimizer)
        optimizer.load_state_dict(copy.deepcopy(state["optimizer_states"][0]))
        schedule.load_state_dict(state["lr_schedulers"][0])
        if is_changed:  # torch's optimizers notice at a step that they lack statistics
            _try_update(optimizer)
        if replaces_params(optimizer):  # nothing of the trial stays in it
            module.optimizer = optimizer
    except Exception as error:  # optimizers refuse the states of others by errors of any kind
        if is_out_of_memory(error):
            raise
        reason = first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(
            f"resume: {checkpoint.path} does not fit: {reason}; changed since it was saved: "
            f"{'; '.join(map(str, changed))}. Undo the change, or start a new run"
        ) from error


def _try_update(optimizer: Optimizer) -> None:
    """Make an update with gradients of ones."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = False  # only a GPU can do it, and these parameters are on none
    calls_closure(optimizer)
    optimizer.zero_grad()


def _changed_options(changed: Sequence[Change], both: Sequence[ParameterRules]) -> set[str]:
    """Return the names of the options of optimizer and parameter rules that have changed."""
    names = {change.key.split(".")[1] for change in changed if change.key.startswith("optimizer.")}
    if any(is_within(change.key, ["parameter_rules"]) for change in changed):
        for rule in (rule for rules in both for rule in rules.rules or ()):
            names |= {*rule} | {*(rule.get("optimizer") or ())}
    return names


@contextlib.contextmanager
def saying_how_to_resume(run_dir: Path) -> Iterator[None]:
    """Add the command that resumes the run to a Ctrl-C, a signal, and a lost peer."""
    try:
        yield
    except PeerLost as error:
        raise PeerLost(f"{error}; {checkpoints.how_to_resume(run_dir)}") from error
    except (KeyboardInterrupt, Terminated) as ended:
        if ended.args and isinstance(ended, KeyboardInterrupt):
            raise  # it says so already
        if not (run_dir / LAST_RECORDED).is_file():
            raise  # nothing to resume yet
        if isinstance(ended, Terminated):
            raise Terminated(ended.signal, lambda: f"; to resume: {resume_command(run_dir)}") from None
        raise KeyboardInterrupt(f"; {checkpoints.how_to_resume(run_dir)}") from None
