"""The keys of each command's own config: which there are, and what kind of value each takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from asr.error_text import did_you_mean
from asr.errors import ConfigError
from asr.nested import at

MAX_NAME_BYTES = 100  # of a set, whose files have longer names; file systems allow 255

Name = Annotated[str, Field(min_length=1, pattern=r"\S")]
Place = Name | int  # a folder may be called 2024, which Hydra reads as a number
Places = Place | list[Place]
FileName = Annotated[str, Field(pattern=r"^[^/.][^/]*$", max_length=MAX_NAME_BYTES)] | int
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch takes
Options = dict[str, Any]  # a choice of a group
Format = Literal["tsv", "txt", "json", "ctm", "srt", "vtt"]
Checkpoint = Literal["best", "last", "average"]

READING = {"run": Place, "batch_duration_s": Positive, "num_workers": int}
DECODING = {**READING, "decoder": Options | None}
SETS = {"manifest": Places | None, "name": FileName | None, "output_dir": Place | None}
TRAINING = {
    "seed": Seed,
    "init": Options,
    "run_dir": Place | None,
    "resume": Place | None,
    "allow_changes": bool,
    "resume_logger": bool,
    "recipes_dir": Place | None,
    "decode_test": bool,
    "find_batch_size": bool,
    "weights": Name,
    "decode": Annotated[list[Checkpoint], Field(min_length=1)],
    "best_lr": dict[str, Positive],
}
GROUPS = ("decoder", "logger")  # a config may choose nothing from these
KINDS: dict[str, dict[str, Any]] = {
    "train": TRAINING,
    "prepare": TRAINING,
    "evaluate": {**DECODING, **SETS, "tune": bool | Place, "scoring": Options},
    "transcribe": {
        **DECODING,
        "audio": Places,
        "channels": Literal["first", "each"],
        "max_segment_s": Positive | None,
        "output": Place | None,
        "output_dir": Place | None,
        "output_format": Format | Annotated[list[Format], Field(min_length=1)],
    },
    "align": {
        **READING,
        **SETS,
        "output_format": Annotated[list[Literal["ctm", "json", "textgrid"]], Field(min_length=1)],
    },
    "export": {
        "run": Place,
        "output": Place,
        "format": Literal["onnx", "torch", "safetensors"],
        "quantize": Literal["int8"] | None,
        "streaming": bool,
        "test_wav": bool,
        "model_type": Literal["ctc", "transducer"] | None,
    },
    "lm": {
        "run": Place,
        "text": Places | None,
        "transcripts": bool,
        "units": Literal["tokens", "words"],
        "order": int,
        "output": Place,
    },
    "stream": {
        "run": Place,
        "audio": Place,
        "sampling_rate_hz": int,
        "packet_s": Annotated[float, Field(ge=0.01, le=10)],
        "at_own_pace": bool,
        "endpoint_s": Annotated[float, Field(ge=0.01, le=3600)],
    },
    "demo": {
        "run": Place,
        "decoder": Options | None,
        "port": Annotated[int, Field(ge=0, le=65535)] | None,
        "max_upload_mb": Positive,
        "max_segment_s": Positive | None,
        "endpoint_s": Positive,
    },
    "convert": {"model": Place, "bpe_model": Place, "output": Place, "seed": Seed},
    "compare": {
        "sweep": Place | None,
        "runs": Places | None,
        "baseline": Name | None,
        "comparisons": Name,
        "target_wer": Number | None,
        "minutes": Number | None,
        "speakers": Place | None,
        "speaker_pattern": Name | None,
        "level": Number,
        "out": Place | None,
        "logger": dict[str, Options | None] | None,
    },
}
# mappings whose keys are those of a file; what a _target_ builds knows its own
FILES = {"data": "data/default.yaml", "augment": "augment/none.yaml"}


def check_options(command: str, config: DictConfig, folder: Path) -> None:
    """Refuse a key that nothing would read, and a value that is not of the kind that its key takes.

    Args:
        command: whose config it is.
        config: composed.
        folder: of the command's configs.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
        OmegaConfBaseException: a key refers to something that is not there.
    """
    _check_known(command, config, folder)
    values: Any = OmegaConf.to_container(config, resolve=True)
    for key, kind in KINDS[command].items():
        if OmegaConf.is_missing(config, key):
            raise ConfigError(f"{key} must be given: {key}=…")
        if key not in values and key not in GROUPS:
            raise ConfigError(f"{key} is missing in the config: it cannot be removed")
        try:
            TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(values.get(key))
        except ValidationError as error:
            # of several kinds, each of which says why the value is not of it
            why = "; or ".join(dict.fromkeys(found["msg"] for found in error.errors()))
            raise ConfigError(f"{key}: {why}; given {values.get(key)!r}") from None


def _check_known(command: str, config: DictConfig, folder: Path) -> None:
    """Refuse a key, of a recipe or added by ``+``, that nothing reads and no other value refers to."""
    given = OmegaConf.to_container(config, resolve=False)
    text = OmegaConf.to_yaml(config)
    allowed = {"": [*_top_keys(command, folder)]}
    allowed |= {place: [*_read(folder / file)] for place, file in FILES.items() if place in allowed[""]}
    for place, known in allowed.items():
        node = at(given, place) if place else given
        for key in map(str, node if isinstance(node, Mapping) else ()):
            if key not in known and not re.search(rf"\$\{{[^}}]*\b{re.escape(key)}\b", text):
                name, where = (f"{place}.{key}", f"in {place}") if place else (key, "at the top level")
                raise ConfigError(
                    f"{name}: there is no key {key!r} {where}, and nothing would read one."
                    f"{did_you_mean(key, known)} Allowed: {', '.join(known)}."
                )


def _top_keys(command: str, folder: Path) -> Iterator[str]:
    """Yield the keys of a command's config, groups among them."""
    own = _read(folder / f"{command}.yaml")
    for item in own.get("defaults", ()):
        if isinstance(item, str) and item != "_self_":
            yield from _top_keys(item, folder)
        elif not isinstance(item, str):
            yield from (group for group in item if " " not in group and group != "recipe")
    yield from (key for key in own if key not in ("defaults", "hydra"))


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found
