"""Checkpoints: writing what one file needs to be enough, and reading files from strangers."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

FORMAT = 1
PREFIX = "recogniser."


class BestCheckpoint(ModelCheckpoint):
    """Keeps the checkpoint with the lowest mean WER on the development sets as ``best.ckpt``."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(
            dirpath=run_dir / "checkpoints",
            filename="best",
            monitor="val/wer",
            mode="min",
            auto_insert_metric_name=False,
            enable_version_counter=False,
        )


class LastCheckpoint(ModelCheckpoint):
    """Keeps the newest checkpoint as ``last.ckpt``, written at every validation and at the end.

    A second callback, because one that monitors a metric leaves its ``last`` behind when the metric gets worse.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__(
            dirpath=run_dir / "checkpoints",
            filename="last",
            auto_insert_metric_name=False,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint tells about a recogniser.

    Attributes:
        path: the file.
        weights: of the recogniser, by name.
        config: the composed config of the run, plain data; not to be trusted.
        tokenizer: state of the tokenizer.
        data: fingerprint of the data and its notes.
        update: number of updates behind the weights.
    """

    path: Path
    weights: dict[str, torch.Tensor]
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    data: dict[str, Any]
    update: int


def checkpoint_file(run: str) -> Path:
    """Return the checkpoint that ``run=`` names: a file, or the best (else the last) of a run's folder."""
    path = Path(run).expanduser()
    if path.is_file():
        return path
    for name in ("best", "last"):
        if (path / "checkpoints" / f"{name}.ckpt").is_file():
            return path / "checkpoints" / f"{name}.ckpt"
    raise ValueError(
        f"run: {str(path)!r} is neither a checkpoint nor a run folder with checkpoints/best.ckpt; "
        "give the folder that asr-train printed at its end"
    )


def load_checkpoint(path: Path) -> LoadedCheckpoint:
    """Read a checkpoint without running any code that it may hold."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        extra = state["werdict"]
        weights = {
            name.removeprefix(PREFIX): tensor for name, tensor in state["state_dict"].items() if name.startswith(PREFIX)
        }
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this program, or it is damaged: {error}") from error
    if extra.get("format") != FORMAT:
        raise ValueError(f"{path} has checkpoint format {extra.get('format')!r}; this version reads {FORMAT}")
    return LoadedCheckpoint(
        path, weights, extra["config"], extra["tokenizer"], extra["data"], int(state["global_step"])
    )


def newest_good_checkpoint(run_dir: Path) -> LoadedCheckpoint | None:
    """Return the newest checkpoint of a run that can be read; None where there is none."""
    for name in ("last", "best"):
        path = run_dir / "checkpoints" / f"{name}.ckpt"
        if path.is_file():
            return load_checkpoint(path)
    return None
