"""The keys of each command's own config: what kind of value each takes, checked before the command looks at any."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf

from asr.cli.config.bounds import bounded
from asr.cli.errors import ConfigError

MAX_RESOLVED_BYTES = 2**29
MAX_NAME_BYTES = 100  # of a set, whose files have longer names; file systems allow 255
MOST_SEED = 2**63 - 1  # what torch takes


@dataclass(frozen=True)
class Kind:
    """A kind of value.

    Attributes:
        wanted: what it is called in a message.
        fits: whether a plain value is of this kind.
    """

    wanted: str
    fits: Callable[[Any], object]

    def or_kind(self, other: Kind) -> Kind:
        """Return the kind of values of either."""
        return Kind(f"{self.wanted}, or {other.wanted}", lambda value: self.fits(value) or other.fits(value))

    def or_null(self) -> Kind:
        """Return this kind, with null allowed too."""
        return Kind(f"{self.wanted}, or null", lambda value: value is None or self.fits(value))


def _is_place(value: Any) -> bool:
    # a folder may be called 2024, which Hydra reads as a number
    return isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip() != ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


YES_OR_NO = Kind("true or false", lambda value: isinstance(value, bool))
NAME = Kind("a name", lambda value: isinstance(value, str) and value.strip() != "")
FILE_NAME = Kind(
    f"a name of at most {MAX_NAME_BYTES} bytes, without / or a dot in front",
    lambda v: (
        _is_place(v)
        and len(str(v).encode(errors="surrogatepass")) <= MAX_NAME_BYTES
        and "/" not in str(v)
        and str(v)[0] != "."
    ),
)
PLACE = Kind("the name of a file or folder", _is_place)
TUNE = Kind("true, false, or a manifest", lambda value: isinstance(value, bool) or _is_place(value))
PLACES = Kind(
    "the name of a file or folder, a pattern, or a list of them",
    lambda value: all(map(_is_place, value)) if isinstance(value, list) else _is_place(value),
)
MANIFESTS = Kind("the name of a file or folder, or a list of them", PLACES.fits)
NUMBER = Kind("a finite number", _is_number)
POSITIVE = Kind("a finite number above 0", lambda value: _is_number(value) and value > 0)
SECONDS = POSITIVE
COUNT = Kind("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
PORT = Kind("a whole number of at least 0 and at most 65535", lambda value: COUNT.fits(value) and 0 <= value <= 65535)
SEED = Kind(f"a whole number of at least 0 and at most {MOST_SEED}", lambda v: COUNT.fits(v) and 0 <= v <= MOST_SEED)
OPTIONS = Kind("a choice of its group", lambda value: isinstance(value, Mapping))
LOGGERS = Kind(
    "a choice of its group, with options for each",
    lambda value: isinstance(value, Mapping) and all(isinstance(node, Mapping | None) for node in value.values()),
)
STARTS = Kind("a place, or a mapping of path, weights, keep_tokenizer and freeze", lambda v: isinstance(v, Mapping))
RATES = Kind(
    "learning rates above 0 by the name of an optimizer",
    lambda value: isinstance(value, Mapping) and all(_is_number(rate) and rate > 0 for rate in value.values()),
)


def some_of(*choices: str) -> Kind:
    """Return the kind of a list of some of the choices."""
    return Kind(
        f"a list of some of {', '.join(choices)}, each once, such as [{choices[0]},{choices[1]}]",
        lambda value: isinstance(value, list) and value and all(value.count(x) == 1 and x in choices for x in value),
    )


def one_of(*choices: str) -> Kind:
    """Return the kind of one of the choices."""
    return Kind(f"one of {', '.join(choices)}", lambda value: value in choices)


TRANSCRIPTS = ("tsv", "txt", "json", "ctm", "srt", "vtt")
READING = {"run": PLACE, "batch_duration_s": SECONDS, "num_workers": COUNT}
DECODING = {**READING, "decoder": OPTIONS.or_null()}
SETS = {"manifest": MANIFESTS.or_null(), "name": FILE_NAME.or_null(), "output_dir": PLACE.or_null()}
TRAINING = {
    "seed": SEED,
    "init": STARTS,
    "run_dir": PLACE.or_null(),
    "resume": PLACE.or_null(),
    "allow_changes": YES_OR_NO,
    "resume_logger": YES_OR_NO,
    "recipes_dir": PLACE.or_null(),
    "decode_test": YES_OR_NO,
    "find_batch_size": YES_OR_NO,
    "weights": NAME,
    "decode": some_of("best", "last", "average"),
    "best_lr": RATES,
}
GROUPS = ("decoder", "logger")  # a config may choose nothing from these
KINDS: dict[str, dict[str, Kind]] = {
    "train": TRAINING,
    "prepare": TRAINING,
    "evaluate": {**DECODING, **SETS, "tune": TUNE, "scoring": OPTIONS},
    "transcribe": {
        **DECODING,
        "audio": PLACES,
        "channels": one_of("first", "each"),
        "max_segment_s": SECONDS.or_null(),
        "output": PLACE.or_null(),
        "output_dir": PLACE.or_null(),
        "output_format": one_of(*TRANSCRIPTS).or_kind(some_of(*TRANSCRIPTS)),
    },
    "align": {**READING, **SETS, "output_format": some_of("ctm", "json", "textgrid")},
    "export": {
        "run": PLACE,
        "output": PLACE,
        "format": one_of("onnx", "torch", "safetensors"),
        "quantize": one_of("int8").or_null(),
        "streaming": YES_OR_NO,
        "test_wav": YES_OR_NO,
        "model_type": one_of("ctc", "transducer").or_null(),
    },
    "lm": {
        "run": PLACE,
        "text": PLACES.or_null(),
        "transcripts": YES_OR_NO,
        "units": NAME,
        "order": COUNT,
        "output": PLACE,
    },
    "stream": {
        "run": PLACE,
        "audio": PLACE,
        "sampling_rate_hz": COUNT,
        "packet_s": SECONDS,
        "at_own_pace": YES_OR_NO,
        "endpoint_s": SECONDS,
    },
    "demo": {
        "run": PLACE,
        "decoder": OPTIONS.or_null(),
        "port": PORT.or_null(),
        "max_upload_mb": POSITIVE,
        "max_segment_s": SECONDS.or_null(),
        "endpoint_s": SECONDS,
    },
    "convert": {"model": PLACE, "bpe_model": PLACE, "output": PLACE, "seed": SEED},
    "compare": {
        "sweep": PLACE.or_null(),
        "runs": PLACES.or_null(),
        "baseline": NAME.or_null(),
        "comparisons": NAME,
        "target_wer": NUMBER.or_null(),
        "minutes": NUMBER.or_null(),
        "speakers": PLACE.or_null(),
        "speaker_pattern": NAME.or_null(),
        "level": NUMBER,
        "out": PLACE.or_null(),
        "logger": LOGGERS.or_null(),
    },
}


def check_options(command: str, config: DictConfig) -> None:
    """Refuse a value that is not of the kind that its key takes.

    Args:
        command: whose config it is.
        config: composed.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
        OmegaConfBaseException: a key refers to something that is not there.
    """
    values = resolved(config)
    for key, kind in KINDS[command].items():
        if key not in values and key not in GROUPS:
            raise ConfigError(f"{key} is missing in the config: it cannot be removed")
        if OmegaConf.is_missing(config, key):
            raise ConfigError(f"{key} must be given: {key}=…")
        value = values.get(key)
        if not kind.fits(value):
            raise ConfigError(f"{key} must be {kind.wanted}, given {value!r}")


def resolved(config: Container) -> Any:
    """Return a config as plain values, within bounds: a few lines may refer to each other a billion times.

    Raises:
        ConfigError: they do.
        OmegaConfBaseException: a key refers to something that is not there.
    """
    with bounded("the values of the config refer to each other without end: write them out", MAX_RESOLVED_BYTES):
        return OmegaConf.to_container(config, resolve=True)
