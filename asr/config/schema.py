"""The schema of each command's own config: its keys, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from asr.error_text import did_you_mean
from asr.errors import ConfigError
from asr.nested import at
from asr.option_types import PartialShare, Share

MAX_NAME_BYTES = 100  # of a set, whose files have longer names; file systems allow 255

Name = Annotated[str, Field(min_length=1, pattern=r"\S")]
Place = Name | int  # a folder may be called 2024, which Hydra reads as a number
Places = Place | Annotated[list[Place], Field(min_length=1)]
Source = (
    Name | Annotated[list[Name], Field(min_length=1)] | Annotated[dict[str, Name | list[Name]], Field(min_length=1)]
)
Columns = dict[Literal["audio", "text", "speaker", "start", "end", "duration", "split", "id"], Name]
FileName = Annotated[str, Field(pattern=r"^[^/.][^/]*$", max_length=MAX_NAME_BYTES)] | int
CorpusName = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # names a folder below data.dir
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch takes
Options = dict[str, Any]  # a choice of a group
Format = Literal["tsv", "txt", "json", "ctm", "srt", "vtt"]
AlignFormat = Literal["ctm", "json", "textgrid"]
Checkpoint = Literal["best", "last", "average"]
Weights = Literal["raw", "average", "ema"]


class MixedCorpus(BaseModel):
    """An entry of ``data.sources``."""

    model_config = ConfigDict(extra="forbid", strict=True)
    recipe: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
    name: CorpusName | None = None
    source: Source | None = None
    columns: Columns | None = None
    weight: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    prepare: Options | None = None


RUN = {"run": Place, "trust": list[Name], "weights": Weights, "average_since": int | None}
READING = {**RUN, "batch_duration_s": Positive, "num_workers": int, "torch_threads": PositiveInt | None}
DECODING = {**READING, "decoder": Options | None}
SETS = {"manifest": Places | None, "name": FileName | None, "output_dir": Place | None}
TRAINING = {
    "seed": Seed,
    "trust": list[Name],
    "init.path": Name | None,
    "init.weights": Weights,
    "init.keep_tokenizer": bool | None,
    "init.freeze": list[str],
    "run_dir": Place | None,
    "resume": Place | None,
    "allow_changes": bool,
    "resume_logger": bool,
    "recipes_dir": Place | None,
    "torch_threads": PositiveInt | None,
    "decode_test": bool,
    "find_batch_size": bool,
    "weights": Weights,
    "decode": Annotated[list[Checkpoint], Field(min_length=1)],
    "best_lr": dict[str, Positive],
    "data.corpus": CorpusName,
    "data.source": Source | None,
    "data.columns": Columns | None,
    "data.sources": Annotated[list[MixedCorpus], Field(min_length=1)] | None,
    "data.dir": Place,
    "data.by_corpus": bool,
    "data.num_jobs": PositiveInt | None,
    "data.max_unreadable": Share,
    "data.scoring_unit": Literal["word", "character"],
    "data.transcripts_lm": Annotated[int, Field(ge=0)],
    "data.storage.kind": Literal["files", "shar"],
    "data.storage.dir": Place | None,
    "data.storage.audio": Literal["flac", "original", "opus"],
    # what Lightning would take, and a run could not keep its promises with, is left out
    "trainer.accelerator": Literal["cpu", "gpu", "cuda", "auto"],
    "trainer.num_nodes": PositiveInt,
    # other strategies shard the weights, or start processes in which a run cannot be resumed
    "trainer.strategy": Options
    | Literal["auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true"]
    | None,
    "trainer.precision": Literal["32-true", "16-mixed", "bf16-mixed"],
    "trainer.max_steps": PositiveInt,
    "trainer.max_epochs": PositiveInt | Literal[-1] | None,
    "trainer.val_check_interval": PositiveInt,
    "trainer.check_val_every_n_epoch": None,  # validations are counted in updates
    "trainer.log_every_n_steps": PositiveInt,
    "trainer.accumulate_grad_batches": PositiveInt,
    "trainer.gradient_clip_val": Annotated[float, Field(ge=0)] | None,
    "trainer.step_in_backward": bool | None,
    "trainer.capture": bool | Literal["updates"] | None,
    "trainer.compile": bool | None,
    "trainer.peer_timeout_s": PositiveInt | None,
    "sweep.gpus_per_job": PositiveInt | None,
    "sweep.jobs_per_gpu": PositiveInt | None,
    "sweep.target_wer": PartialShare | None,
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
        "output_format": AlignFormat | Annotated[list[AlignFormat], Field(min_length=1)],
    },
    "export": {
        **RUN,
        "output": Place,
        "format": Literal["onnx", "torch", "safetensors"],
        "quantize": Literal["int8"] | None,
        "streaming": bool,
        "test_wav": bool,
        "model_type": Literal["ctc", "transducer"] | None,
    },
    "lm": {
        "run": Place,
        "trust": list[Name],
        "text": Places | None,
        "transcripts": bool,
        "units": Literal["tokens", "words"],
        "order": PositiveInt,
        "output": Place,
    },
    "stream": {
        **RUN,
        "torch_threads": PositiveInt | None,
        "audio": Place,
        "sampling_rate_hz": int,
        "packet_s": Annotated[float, Field(ge=0.01, le=10)],
        "at_own_pace": bool,
        "endpoint_s": Annotated[float, Field(ge=0.01, le=3600)],
    },
    "demo": {
        **RUN,
        "torch_threads": PositiveInt | None,
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
        "results": Places | None,
        "pattern": Name | None,
        "format": Name | None,
        "references": Place | None,
        "columns": dict[
            Literal["id", "reference", "hypothesis", "system", "seed", "set", "speaker", "words", "errors"], Name
        ],
        "allow": list[Literal["missing", "duplicates", "references", "empty"]],
        "unit": Literal["word", "character"],
        "scoring.normalize": Literal["none", "basic", "english"],
        "by": list[Name],
        "training_texts": Place | None,
        "baseline": Name | None,
        "comparisons": Literal["all", "baseline"],
        "target_wer": PartialShare | None,
        "minutes": Positive | None,
        "speakers": Place | None,
        "speaker_pattern": re.Pattern[str] | None,
        "level": PartialShare,
        "out": Place | None,
        "logger": dict[str, Options | None] | None,
    },
    "runs": {
        "folder": Places,
        "sort": Literal[
            "started", "run", "recipe", "system", "seed", "updates", "wer_dev", "wer_test", "status", "size_mb"
        ],
        "output_format": Literal["table", "json"],
    },
}
# groups whose choice is a mapping of plain keys, and the file that has them all
PLAIN_GROUPS = {"data": "data/default.yaml", "augment": "augment/none.yaml"}


def check_options(command: str, config: DictConfig, folder: Path) -> None:
    """Refuse a key that nothing would read, and a value that is not of the type that its key takes.

    Args:
        command: whose config it is.
        config: composed.
        folder: of the command's configs.

    Raises:
        ConfigError: names the key, what was given and what is allowed.
        OmegaConfBaseException: a key refers to something that is not there.
    """
    text = OmegaConf.to_yaml(config)
    _check_known(OmegaConf.to_container(config, resolve=False), _schema(command, folder), "", text)
    values: Any = OmegaConf.to_container(config, resolve=True)
    for key, kind in KINDS[command].items():
        if OmegaConf.is_missing(config, key):
            raise ConfigError(f"{key} must be given: {key}=…")
        *place, name = key.split(".")
        # what a _target_ builds has its own defaults, as of trainer
        if name not in (at(values, *place) or {}) and key not in GROUPS and place[:1] in ([], ["data"], ["init"]):
            raise ConfigError(f"{key} is missing in the config: it cannot be removed")
        given = at(values, *key.split("."))
        try:
            TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(given)
        except ValidationError as error:
            first, *others = error.errors()
            # several types may be allowed, each of which says why the value is not of it
            why = [first["msg"], *(other["msg"] for other in others if _place(other) == _place(first))]
            raise ConfigError(f"{key}{_place(first)}: {'; or '.join(dict.fromkeys(why))}; given {given!r}") from None


def _place(found: Any) -> str:
    """Return where in a list an error is, with a dot before it; empty if it is not in one."""
    index = next((number for number, name in enumerate(found["loc"]) if isinstance(name, int)), None)
    return "" if index is None else f".{'.'.join(map(str, found['loc'][index:]))}"


def _check_known(given: Any, known: Mapping[str, Any], place: str, text: str) -> None:
    """Refuse a key, of a recipe or added by ``+``, that nothing reads and no other value refers to."""
    for key in map(str, given):
        if key not in known and not re.search(rf"\$\{{[^}}]*\b{re.escape(key)}\b", text):
            where = f"in {place.rstrip('.')}" if place else "at the top level"
            raise ConfigError(
                f"{place}{key}: there is no key {key!r} {where}, and nothing would read one."
                f"{did_you_mean(key, known)} Allowed: {', '.join(known)}."
            )
    for key, node in known.items():
        # a mapping without keys takes any
        if isinstance(node, Mapping) and node and "_target_" not in node and isinstance(given.get(key), Mapping):
            _check_known(given[key], node, f"{place}{key}.", text)


def _schema(command: str, folder: Path) -> dict[str, Any]:
    """Return the keys of a command's config, groups among them, as its yaml files have them."""
    own = yaml.safe_load((folder / f"{command}.yaml").read_text(encoding="utf-8"))
    known: dict[str, Any] = {}
    for item in own.get("defaults", ()):
        if isinstance(item, str) and item != "_self_":
            known |= _schema(item, folder)
        elif not isinstance(item, str):
            known |= {group: {} for group in item if " " not in group and group != "recipe"}
    for group in known.keys() & PLAIN_GROUPS.keys():
        known[group] = yaml.safe_load((folder / PLAIN_GROUPS[group]).read_text(encoding="utf-8"))
    for key, value in own.items():
        if key not in ("defaults", "hydra"):
            # what a command itself says of a group stands beside the choice
            known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
    return known
