"""What made the transcripts of a folder: recorded beside them, so that no other model adds its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from asr.cli.errors import ConfigError
from asr.data.preparation.file_digests import describe_file
from asr.plain_data import read_json
from asr.safe_io import named_path, write_new
from asr.training.checkpoints import checkpoint_file

NAME = ".asr-transcribe.json"
OPTIONS = ("weights", "average_since", "decoder", "max_segment_s", "channels")
FILES = ("lm", "lodr", "hotwords")  # that a decoder reads


def maker_of(options: DictConfig) -> dict[str, Any]:
    """Return all that decides on transcripts, as plain data: options, and digests of files.

    Raises:
        ConfigError: there is no such run.
    """
    plain: dict[str, Any] = OmegaConf.to_container(options, resolve=True)  # type: ignore[assignment]
    found = {key: plain.get(key) for key in OPTIONS}
    files = {"checkpoint": checkpoint_file(str(options.run))}
    files |= {key: named_path(path) for key in FILES if (path := (found["decoder"] or {}).get(key)) is not None}
    return found | {key: describe_file(path)["sha256"] for key, path in files.items() if path.is_file()}


def refuse_other_maker(folder: Path, maker: Mapping[str, Any]) -> None:
    """Refuse a folder that holds transcripts of something else; of those without a record nothing is known.

    Raises:
        ConfigError: it does, or its record is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return
    try:
        recorded = read_json(path)
    except ValueError as error:
        raise ConfigError(f"output_dir: {error}; remove that file, or name another folder") from None
    written = recorded if isinstance(recorded, dict) else {}
    keys = [key for key in {**written, **maker} if written.get(key) != maker.get(key)]
    if keys:
        raise ConfigError(
            f"output_dir: {folder} holds transcripts that were made with another {' and '.join(keys)}; name another "
            f"folder, or remove them and {NAME}"
        )


def record_maker(folder: Path, maker: Mapping[str, Any]) -> None:
    """Write the record, unless there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        write_new(folder / NAME, json.dumps(maker, indent=1))
