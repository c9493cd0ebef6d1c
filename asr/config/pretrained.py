"""``encoder=pretrained``: what a run records of the model, and the options that follow from it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from omegaconf import DictConfig

from asr.config.build import part, plain
from asr.config.own_code import at_work
from asr.data.preparation.saved_corpus import Choice
from asr.errors import ConfigError
from asr.plain_data import at, is_within
from asr.safe_io import named_path

PRETRAINED = "asr.models.encoders.pretrained.PretrainedEncoder"
WAVEFORM = "asr.data.features.Waveform"
FOLLOWING = ("features", "data.sampling_rate_hz")  # not from the corpus


def is_pretrained_config(config: Mapping[str, Any]) -> bool:
    """Return whether the encoder of a config is a pretrained one."""
    return bool(at(config, "encoder", "_target_") == PRETRAINED)


def pretrained_choices(config: DictConfig, overridden: Collection[str]) -> Iterator[Choice]:
    """Record a pretrained encoder in a config, and yield the options that follow from it.

    Args:
        config: of a new run; its ``encoder.source`` is set.
        overridden: keys that the command line names, which keep their values.

    Raises:
        ConfigError: there is no such model, or it cannot be fetched.
    """
    # transformers is an extra
    from asr.models.encoders.pretrained import FRAMES_HZ, WHISPER, WITH_MASKS
    from asr.models.pretrained import describe, find_snapshot

    encoder = config.encoder
    if config.trainer.get("compile"):
        raise ConfigError("trainer.compile=true: layers of transformers are not compiled here; leave it out")
    with at_work("encoder.model", describe):
        encoder.source = describe(str(encoder.model))
        if (folder := named_path(encoder.model)).is_dir():
            encoder.model_folder = str(folder.resolve())
        if config.init.path == encoder.model:  # a name of the hub is no path
            config.init.path = str(find_snapshot(str(encoder.model)).folder)
    options, inputs = json.loads(encoder.source.config), json.loads(encoder.source.inputs)
    rate_hz = inputs.get("sampling_rate", 16_000)
    reason = f"as {encoder.model} takes it, a {options['model_type']} with the licence {encoder.source.license}"
    if config.features["_target_"] != WAVEFORM and "features" not in overridden:
        yield Choice("features", "waveform", reason)
    if config.data.sampling_rate_hz != rate_hz and "data.sampling_rate_hz" not in overridden:
        yield Choice("data.sampling_rate_hz", rate_hz, reason)
    if config.augment.features is not None and not any(is_within(key, ["augment.features"]) for key in overridden):
        yield Choice("augment.features", None, "it would mask audio; encoder.masks masks encodings")
    kind = options["model_type"]
    places = [key for key in overridden if key != "encoder"]  # encoder=pretrained says nothing of masks
    given = {key: value for key, value in (encoder.masks or {}).items() if is_within(f"encoder.masks.{key}", places)}
    if kind not in (*WITH_MASKS, WHISPER) and given != encoder.masks:
        yield Choice("encoder.masks", given or None, f"nothing of a {kind} can be masked")
    with torch.device("meta"):
        outline = part(plain(config), "encoder", num_features=rate_hz // FRAMES_HZ)
    if unused := [re.escape(name) for name in without_gradient(outline) if ".lora_" not in name]:
        yield Choice("init.freeze", [*config.init.freeze, *unused], f"a {kind} has these weights, but never uses them")


def base_folder(config: Mapping[str, Any], place: object) -> str:
    """Return the folder that ``encoder.model=PATH`` names: where the pretrained model of a run is now.

    Raises:
        ConfigError: there is no such folder, or the run has no pretrained encoder.
    """
    if not is_pretrained_config(config):
        raise ConfigError(f"encoder.model={place}: the run has no pretrained encoder; leave it out")
    if not (folder := named_path(place)).is_dir():
        raise ConfigError(f"encoder.model: there is no folder {str(place)!r}; give the folder of the run's base model")
    return str(folder.resolve())


def without_gradient(encoder: Any) -> list[str]:
    """Return which parameters of a pretrained encoder on the meta device would be trained, but get no gradient."""
    with at_work("encoder", type(encoder)):
        encodings, _ = encoder(torch.zeros(2, 100, encoder.frame, device="meta"), torch.zeros(2, device="meta"))
        if encodings.requires_grad:
            encodings.sum().backward()
    without = [name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
    encoder.zero_grad()
    return without
