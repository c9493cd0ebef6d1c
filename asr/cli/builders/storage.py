"""``data.storage``: where the audio, or the features, of prepared data lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asr.cli.errors import ConfigError
from asr.data.features import Features
from asr.data.preparation.shard_fields import FORMATS, AudioField, FeatureField
from asr.data.preparation.shards import ShardStorage
from asr.run_folder import usable_folder

OF_FILES = {"kind": "files", "dir": None, "audio": "flac"}
KINDS = ("files", "shar")


def shard_storage(given: Any, features: Features) -> ShardStorage | None:
    """Return how audio, or features, are stored in shards; None if they are read where the corpus has them.

    Args:
        given: ``data.storage``; None: of a run from before there was such an option.
        features: of the run.

    Raises:
        ConfigError: an option is unknown, lacking, or would do nothing.
    """
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"data.storage must be one of {', '.join(KINDS)}, given {given!r}")
    if unknown := [key for key in given or {} if key not in OF_FILES]:
        raise ConfigError(f"data.storage has no option {unknown[0]}; allowed are {', '.join(OF_FILES)}")
    storage = {**OF_FILES, **(given or {})}
    for key, allowed in (("kind", KINDS), ("audio", FORMATS)):
        if storage[key] not in allowed:
            name = "data.storage" if key == "kind" else f"data.storage.{key}"
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}, given {storage[key]!r}")
    if storage["kind"] == "files":
        for key in ("dir", "audio"):
            if storage[key] != OF_FILES[key]:
                raise ConfigError(
                    f"data.storage.{key}={storage[key]}: it does nothing without data.storage=shar; add that, or leave "
                    "this out"
                )
        return None
    if storage["dir"] is None:
        raise ConfigError("data.storage=shar needs a folder for the shards: data.storage.dir=PATH")
    folder = usable_folder(storage["dir"], "data.storage.dir")
    if not features.precomputed:
        return ShardStorage(folder, AudioField(storage["audio"]))
    if storage["audio"] != OF_FILES["audio"]:
        raise ConfigError(
            f"data.storage.audio={storage['audio']}: it does nothing where features are stored, not audio; choose "
            "features=log_mel, or leave this out"
        )
    return ShardStorage(folder, FeatureField(features))
