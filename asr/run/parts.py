"""Nodes of a config → objects, whose keys and values are checked against signatures; the parts of a run."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, Unpack, get_args, get_origin, get_type_hints

import numpy as np
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from asr.data.features import Features
from asr.data.loading.augmentation import AudioAugmentation
from asr.data.loading.loader import Workers
from asr.data.loading.sampling import BucketingConfig
from asr.data.preparation.cuts import Limits
from asr.data.preparation.prepared import PreparedData
from asr.decoding.greedy import Decoder
from asr.decoding.scorers import FILE_OPTIONS
from asr.features.log_mel import GlobalNorm
from asr.models.heads.protocols import Head
from asr.models.recognizer import Recognizer, initialize, is_pretrained
from asr.run.command_line import CONFIGS
from asr.run.options import Augment, ModelOptions, RunOptions, Target
from asr.run.trust import error_context, is_third_party
from asr.text.tokenizer import KeptTokenizer, SubwordTokenizer, Tokenizer
from asr.training.checkpoints import FORMAT
from asr.training.initial_weights import freeze
from werdict.errors import ConfigError, did_you_mean
from werdict.files import is_within
from werdict.former_names import PRESENT

if TYPE_CHECKING:
    from asr.training.module import OptimizerFactory, ScheduleFactory, TrainingModule


SPECIAL_KEYS = {"_target_", "_partial_", "_convert_"}
PASSED = ("self", "params", "named_parameters")  # arguments that no config gives
DECLARED = ("optim", "torch.optim")  # packages whose signatures declare every option with its type and default


def locate(name: object, key: str) -> Any:
    """Return the class or function that ``_target_`` names; an error in its module keeps its traceback.

    Raises:
        ConfigError: no such class or function is found.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{key}._target_ must be the name of a class, given {name!r}")
    module, _, attribute = PRESENT.get(name, name).rpartition(".")
    try:
        imported = importlib.import_module(module)
        if hasattr(imported, attribute):
            return getattr(imported, attribute)
        problem = f"the module {module} has no such name.{did_you_mean(attribute, vars(imported))}"
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not is_within(module, [str(error.name)]):
            raise  # of an import in that module
        problem = f"{error}."
    raise ConfigError(
        f"{key}._target_: {name!r} is not found: {problem} Your own package must be on PYTHONPATH, or installed, as by "
        "pip install -e"
    )


def instantiate(node: Mapping[str, Any], key: str, **arguments: Any) -> Any:
    """Build the object that a config node describes.

    Args:
        node: resolved plain config with ``_target_``; nested nodes are built first.
        key: where the node stands in the config.
        arguments: what the program itself passes on, beside the configured values.

    Returns:
        The object, or a `Configured` that waits for more arguments if the node has ``_partial_: true``.

    Raises:
        ConfigError: an unknown or missing key, or a value that is refused.
    """
    target, partial = locate(node.get("_target_"), key), bool(node.get("_partial_"))
    values = {name: _built(value, f"{key}.{name}") for name, value in node.items() if name not in SPECIAL_KEYS}
    check_keys(target, values | arguments, key, partial)
    for name in values.keys() & arguments.keys():
        raise ConfigError(f"{key}.{name} cannot be given: it follows from other parts of the config")
    built = Configured(target, check_values(target, values, key) | arguments, key)
    return built if partial else built()


def _built(value: Any, key: str) -> Any:
    """Build the nodes within a value, in lists and mappings too."""
    if isinstance(value, list):
        return [_built(item, f"{key}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "_target_" in value:
        return instantiate(value, key)
    return {name: _built(item, f"{key}.{name}") for name, item in value.items()}


class Configured:
    """A class or function with its configured arguments: waits for the rest, and names the key when it refuses."""

    def __init__(self, target: Any, values: Mapping[str, Any], key: str) -> None:
        self.func, self.keywords, self.key = target, dict(values), key

    def with_known(self, **arguments: Any) -> Any:
        """Call the target with those of the arguments that it has, unless they are configured."""
        parameters = parameters_of(self.func)
        return self(**{k: value for k, value in arguments.items() if k in parameters and k not in self.keywords})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the target with the configured and the given arguments."""
        with error_context(self.key, self.func):
            return self.func(*args, **{**self.keywords, **kwargs})


def parameters_of(target: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function; ``**options: Unpack[SomeTypedDict]`` counts as the dict's keys."""
    try:
        parameters = dict(inspect.signature(target).parameters)
    except ValueError:  # of a builtin, which takes what it takes
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}
    for name, options in _unpacked(target).items():
        if parameters.pop(name, None) is not None:  # else the signature has them already
            parameters |= {key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in options}
    return parameters


def with_defaults(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an optimizer or schedule with the options that the config leaves to its class, at the class's defaults.

    Runs are recorded, compared and resumed with them, so that a later default of the class changes no earlier run.
    A class of another package keeps what is given.
    """
    whole, name = dict(node), str(node.get("_target_"))
    target = locate(name, key) if is_within(name, DECLARED) else None
    for option in parameters_of(target).values() if callable(target) else ():
        value = list(option.default) if isinstance(option.default, tuple) else option.default
        # without a rate in the config, a run says that it has the class's own
        if option.name != "lr" and isinstance(value, bool | int | float | str | list | None):
            whole.setdefault(option.name, value)
    return whole


def takes(target: Any, name: str) -> bool:
    """Return whether a class or function has an option of this name, or takes any."""
    parameters = parameters_of(target)
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _unpacked(target: Any) -> dict[str, dict[str, Any]]:
    """Return the annotations that each ``**options: Unpack[SomeTypedDict]`` stands for."""
    dicts = {name: get_args(hint)[0] for name, hint in _hints(target).items() if get_origin(hint) is Unpack}
    return {name: get_type_hints(options, include_extras=True) for name, options in dicts.items()}


def _hints(target: Any) -> dict[str, Any]:
    """Return the annotations of a constructor or function; nothing if they name what cannot be found."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def check_keys(target: Any, values: Collection[str], key: str, partial: bool) -> None:
    """Refuse keys that the target does not have, and miss those that it needs."""
    parameters = parameters_of(target)
    for name in values:
        if not takes(target, name):
            allowed = [p for p in parameters if p not in PASSED]
            raise ConfigError(
                f"{key}.{name}: {target.__qualname__} has no such option.{did_you_mean(name, allowed)} "
                f"Allowed: {', '.join(allowed) or 'none, it has no options'}."
            )
    named = [(name, p) for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name, p in named if p.default is p.empty and name not in values]
    if missing and not partial:
        raise ConfigError(f"{key}: {', '.join(missing)} must be given")


def check_values(target: Any, values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values converted to the annotated types; refuse those that do not fit."""
    hints = _hints(target)
    for options in _unpacked(target).values():
        hints |= options
    return {name: _checked(value, hints.get(name), f"{key}.{name}") for name, value in values.items()}


def _checked(value: Any, hint: Any, key: str) -> Any:
    """Check plain values; objects, and types that no plain value has, are their owner's to check."""
    hint = _plain_hint(hint)
    try:
        text = json.dumps(value)
    except TypeError:
        return value
    if hint in (None, Any):
        return value
    try:
        # of JSON strict checks take a list for a tuple, but neither a text nor true for a number
        return TypeAdapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        fixed = next((kind for kind in options if get_origin(kind) is tuple and Ellipsis not in get_args(kind)), None)
        if fixed and first["type"] in ("missing", "too_long", "tuple_type"):  # in words about fields and tuples
            raise ConfigError(f"{key}: a list of {len(get_args(fixed))} values is needed, given {value!r}") from error
        place = "".join(f".{item}" for item in first["loc"] if isinstance(item, int))
        raise ConfigError(f"{key}{place}: {first['msg']}, given {value!r}") from error


def _plain_hint(hint: Any) -> Any:
    """Return the part of an annotation that plain values can be checked against; None if it has no such part."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        checkable = [part for part in get_args(hint) if part is type(None) or _plain_hint(part) is not None]
        return Union[tuple(checkable)] if checkable else None  # noqa: UP007
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        plain = [_plain_hint(part) for part in get_args(hint)]
        return None if None in plain else tuple[tuple(plain)]  # type: ignore[misc]
    try:
        TypeAdapter(hint)
    except PydanticUserError:
        return None
    return hint


RESERVED = {"run_dir", "config"}  # arguments of loggers and callbacks that the program sets itself
ENCODER = ("d_model", "subsampling_factor", "output_frames")  # what a recognizer asks of an encoder of the user's own
TENSORBOARD = ("tensorboard", "tensorboardX")  # packages, of which one is enough
LONG_UTTERANCE = 0.95  # quantile of training utterances; longer parts of recordings would be decoded badly


def build_component(target: Target | None, key: str, partial: bool = False, **arguments: Any) -> Any:
    """Build what the choice of a group describes.

    Args:
        target: class or function, and its arguments.
        key: where they stand in the config.
        partial: return a `Configured` that waits for more arguments.
        arguments: what the program itself passes on.

    Raises:
        ConfigError: nothing is chosen, or what is chosen is refused.
    """
    if target is None:
        raise ConfigError(f"{key} is missing in the config, or null")
    return instantiate({**target.plain(), "_partial_": partial}, key, **arguments)


@dataclass(frozen=True)
class DataParts:
    """What turns a corpus into batches."""

    features: Features
    text: Callable[[str], str]
    limits: Limits
    batch: BucketingConfig
    workers: Workers
    augmentation: Any
    tokenizer_trainer: Any


def build_data_parts(options: RunOptions, tokenizer: Tokenizer | None = None) -> DataParts:
    """Build the parts of the data side.

    Args:
        options: of a run.
        tokenizer: to use; None: train one.
    """
    augment, data = options.augment, options.data
    features = build_component(options.features, "features")
    augmentation = None if augment.audio is None else build_component(augment.audio, "augment.audio")
    if augmentation is not None and features.precomputed:
        raise ConfigError("augment.audio changes the audio, but features are stored; choose augment.audio=null")
    masks, content = build_masks(augment), getattr(features, "content", "spectrum")
    if getattr(masks, "needs", None) not in (None, content):
        raise ConfigError(
            f"augment.features: {type(masks).__name__} needs features with content={masks.needs}, but those of "
            f"{type(features).__name__} have content={content}; choose augment.features=null"
        )
    limits = build_component(data.limits, "data.limits")
    batch, workers = build_component(data.batch, "data.batch"), build_component(data.workers, "data.workers")
    trainer = build_component(options.tokenizer, "tokenizer") if tokenizer is None else KeptTokenizer(tokenizer)
    text = build_text(data.text, trainer.tokenizer if isinstance(trainer, KeptTokenizer) else None)
    return DataParts(features, text, limits, batch, workers, augmentation, trainer)


def build_masks(augment: Augment) -> Any:
    """Build the augmentation of features; None if there is none."""
    return None if augment.features is None else build_component(augment.features, "augment.features")


def build_text(rules: Target, tokenizer: Tokenizer | None) -> Callable[[str], str]:
    """Build the normalizer of transcripts, after which the rules of the user's own sentencepiece model rewrite them."""
    normalize: Callable[[str], str] = build_component(rules, "data.text")
    return partial(tokenizer.rewritten, normalize) if isinstance(tokenizer, SubwordTokenizer) else normalize


def build_encoder(target: Target, num_features: int) -> Any:
    """Build the encoder for features of a given width."""
    encoder = build_component(target, "encoder", num_features=num_features)
    if lacking := [name for name in ENCODER if not hasattr(encoder, name)]:
        raise ConfigError(
            f"encoder: {type(encoder).__name__} has no {', '.join(lacking)}; docs/your_own_code.md says what is needed"
        )
    return encoder


def build_recognizer(options: ModelOptions, vocab_size: int, mean: Sequence[float], std: Sequence[float]) -> Recognizer:
    """Build the recognizer with new weights that depend only on the seed and the shapes."""
    recognizer = _uninitialized(options, vocab_size, GlobalNorm(mean, std), contextlib.nullcontext())
    initialize(recognizer)
    return recognizer


def outline_recognizer(options: ModelOptions, vocab_size: int, num_features: int) -> Recognizer:
    """Build the recognizer without memory for weights: on the meta device, which classes of others may not know."""
    normalize = GlobalNorm([0.0] * num_features, [1.0] * num_features)
    return _uninitialized(options, vocab_size, normalize, outline_device(options))


def outline_device(options: ModelOptions) -> torch.device | contextlib.nullcontext[None]:
    """Return where an outline is built."""
    return contextlib.nullcontext() if is_own_model(options) else torch.device("meta")


def is_own_model(options: ModelOptions) -> bool:
    """Return whether encoder or head are classes of the user's own."""
    return is_third_party(options.encoder.target) or is_third_party(options.head.target)


def _uninitialized(
    options: ModelOptions,
    vocab_size: int,
    normalize: GlobalNorm,
    place: torch.device | contextlib.nullcontext[None],
) -> Recognizer:
    torch.manual_seed(options.seed)
    with place:
        encoder = build_encoder(options.encoder, len(normalize.mean))
        head = build_component(options.head, "head", d_model=encoder.d_model, vocab_size=vocab_size)
    augment = build_masks(options.augment)
    if is_pretrained(encoder):
        normalize = GlobalNorm([0.0] * len(normalize.mean), [1.0] * len(normalize.mean))
    with error_context("head", type(head)):
        return Recognizer(encoder, head, normalize, augment)


def build_decoder(target: Target | None) -> Decoder:
    """Build the decoder of a run itself.

    Raises:
        ConfigError: it would read files, which a checkpoint does not hold.
    """
    for key, value in () if target is None else target.plain().items():
        if key in FILE_OPTIONS and value is not None:
            raise ConfigError(
                f"decoder.{key} is for asr-evaluate and asr-transcribe: a run is decoded from its checkpoint alone; "
                f"leave it null, given {value!r}"
            )
    decoder: Decoder = build_component(target, "decoder")
    return decoder


class UpdateParts(NamedTuple):
    """What turns gradients into updates, and log-probabilities into text."""

    optimizer_factory: OptimizerFactory
    schedule_factory: ScheduleFactory
    decoder: Decoder


def build_update_parts(options: RunOptions, optimizer_factory: OptimizerFactory | None = None) -> UpdateParts:
    """Build the factories of optimizer and schedule, and the decoder.

    Args:
        options: of the run.
        optimizer_factory: that is built already.
    """
    schedule = build_component(options.schedule, "schedule", partial=True)
    return UpdateParts(optimizer_factory or _optimizer_factory(options), schedule, build_decoder(options.decoder))


def _optimizer_factory(options: RunOptions) -> OptimizerFactory:
    optimizer = build_component(options.optimizer, "optimizer", partial=True)
    factory: Configured = build_component(options.parameter_rules, "parameter_rules", optimizer=optimizer)
    factory = Configured(factory, {}, "parameter_rules")
    if options.trainer.step_in_backward:
        key = "trainer.step_in_backward"
        factory = Configured(locate("optim.step_in_backward", key), {"factory": factory}, key)
    return factory


def check_decoder(decoder: Decoder, head: Head) -> None:
    """Refuse a decoder that cannot search with a head.

    Raises:
        ConfigError: names the decoders that can.
    """
    if isinstance(head, decoder.needs):
        return
    targets = {file.stem: OmegaConf.load(file)._target_ for file in sorted((CONFIGS / "decoder").glob("*.yaml"))}
    fitting = [name for name, target in targets.items() if isinstance(head, locate(target, "decoder").needs)]
    raise ConfigError(
        f"decoder: {type(decoder).__name__} cannot search with {type(head).__name__}; choose decoder="
        f"{' or decoder='.join(fitting)}, or another head"
    )


def build_module(
    options: RunOptions,
    parts: DataParts,
    prepared: PreparedData,
    optimizer_factory: OptimizerFactory | None = None,
) -> TrainingModule:
    """Build the LightningModule of a run.

    Args:
        options: of the run.
        parts: of the data side.
        prepared: data.
        optimizer_factory: that is built already.

    Raises:
        ConfigError: a part is refused.
    """
    # Lightning takes seconds, which decoding would wait for
    from asr.training.module import TrainingModule

    updates = build_update_parts(options, optimizer_factory)
    recognizer = build_recognizer(options, prepared.tokenizer.vocab_size, prepared.mean, prepared.std)
    freeze(recognizer, options.init.freeze)
    data = {
        "fingerprint": prepared.fingerprint,
        "folder": str(prepared.folder),
        "notes": list(prepared.notes),
        "utterance_s": round(float(np.quantile(prepared.cuts("train").durations, LONG_UTTERANCE)), 2),
        "noise": parts.augmentation.digest() if isinstance(parts.augmentation, AudioAugmentation) else "",
    }
    num_cuts = int(prepared.splits["train"]["num_utterances"])
    return TrainingModule(
        recognizer,
        prepared.tokenizer,
        updates.decoder,
        updates.optimizer_factory,
        updates.schedule_factory,
        dev_names=prepared.names("dev"),
        max_duration_s=parts.batch.max_duration_s,
        extra_state={
            "format": FORMAT,
            "config": options.plain(),
            "tokenizer": prepared.tokenizer.state(),
            "data": data,
        },
        unit=options.data.scoring_unit,
        max_unreadable=max(1, int(options.data.max_unreadable * num_cuts)),
    )


def check_loggers(loggers: Sequence[Configured]) -> None:
    """Check what loggers need, without building any: their constructors write files."""
    for factory in loggers:
        if hasattr(factory.func, "check_machine"):
            factory.func.check_machine()
        if factory.func.__module__ == "lightning.pytorch.loggers.tensorboard" and not any(map(find_spec, TENSORBOARD)):
            raise ConfigError(f"{factory.key}: tensorboard is not installed: pip install 'werdict[tensorboard]'")


def factories(targets: Mapping[str, Target | None] | None, group: Literal["logger", "callbacks"]) -> list[Configured]:
    """Return the factories of loggers or callbacks, whose keys and types are checked."""
    if targets is None:
        raise ConfigError(f"{group} is missing in the config")
    chosen = {name: target for name, target in targets.items() if target is not None}
    for name, target in chosen.items():
        for key in RESERVED & target.plain().keys():
            raise ConfigError(f"{group}.{name}.{key} cannot be given: it follows from the run's own {key}")
    return [build_component(target, f"{group}.{name}", partial=True) for name, target in chosen.items()]


def build_all(made_by: Sequence[Configured], run_dir: Path, options: RunOptions) -> list[Any]:
    """Build loggers or callbacks; those that take ``run_dir``, ``save_dir`` (Lightning's), or ``config`` get them."""
    arguments = {"run_dir": run_dir, "save_dir": str(run_dir), "config": options.plain()}
    return [factory.with_known(**arguments) for factory in made_by]


def num_threads(torch_threads: int | None, num_workers: int, num_processes: int = 1) -> int:
    """Return ``torch_threads`` if it is set, else the number of cores that no loader worker needs.

    Args:
        torch_threads: of this process, or None.
        num_workers: loader workers of each process.
        num_processes: that share the machine.
    """
    return torch_threads or max(1, len(os.sched_getaffinity(0)) // num_processes - num_workers)
