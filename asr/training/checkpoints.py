"""Reading checkpoints: files may be damaged, and may come from strangers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asr.error_text import is_out_of_memory
from asr.safe_io import named_path
from asr.training.checkpoint_checks import (
    check_averages,
    check_contents,
    check_weights,
    check_werdict,
    count_at,
    damage,
    mapping_at,
    why_unreadable,
)
from asr.training.checkpoint_files import update_files
from asr.training.out_of_memory import explaining_out_of_memory
from asr.training.running_averages import RunningAverages

FORMAT = 1
PREFIX = "recogniser."
AVERAGES = "averages"


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
        callbacks: state of the run's callbacks, by name.
        averages: of the weights until then; None where there are none.
        described: which weights these are.
        rejected: what is wrong with each newer checkpoint of the run that could not be read.
    """

    path: Path
    weights: dict[str, torch.Tensor]
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    data: dict[str, Any]
    update: int
    callbacks: Mapping[str, Any]
    averages: RunningAverages | None = None
    described: str = "raw"
    rejected: tuple[str, ...] = ()


def checkpoint_file(run: str) -> Path:
    """Return the checkpoint that ``run=`` names: a file, or the best (else the last) of a run's folder."""
    path = named_path(run)
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
    """Read a checkpoint without running any code that it may hold.

    Raises:
        ValueError: the file is damaged, or something else.
        OutOfMemory: it does not fit into memory.
    """
    with explaining_out_of_memory(lambda: f"when reading {path}: free some, or raise its limit (ulimit -v)"):
        problem = damage(path)
        if problem:
            raise ValueError(f"{path} is damaged, or no checkpoint: {problem}; give another one of checkpoints/")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            check_contents(state, path.stat().st_size)
            return _loaded(path, state)
        # what a stranger's file makes the unpickler raise can be anything
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(f"{path} is not a checkpoint of this program: {why_unreadable(error)}") from error


def _loaded(path: Path, state: object) -> LoadedCheckpoint:
    """Return the parts of a checkpoint, each of the type that it is used as."""
    if not isinstance(state, Mapping):
        raise ValueError(f"it is a {type(state).__name__}")
    extra, all_weights = mapping_at(state, "werdict"), mapping_at(state, "state_dict")
    if extra.get("format") != FORMAT:
        raise ValueError(f"its format is {extra.get('format')!r:.80}; this version reads {FORMAT}")
    check_werdict(extra)
    check_weights(all_weights, "state_dict")
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in all_weights.items() if name.startswith(PREFIX)}
    averages = mapping_at(state, AVERAGES) if AVERAGES in state else None
    if averages is not None:
        check_averages(averages, weights)
    return LoadedCheckpoint(
        path,
        weights,
        dict(extra["config"]),
        dict(extra["tokenizer"]),
        dict(extra["data"]),
        count_at(state, "global_step"),
        mapping_at(state, "callbacks") if "callbacks" in state else {},
        None if averages is None else RunningAverages.from_state(averages),
    )


def newest_good_checkpoint(run_dir: Path) -> LoadedCheckpoint | None:
    """Return the newest checkpoint of a run that can be read; None where there is none at all.

    Raises:
        ValueError: there are some, and all are damaged.
    """
    rejected: list[str] = []
    for path in _candidates(run_dir / "checkpoints"):
        try:
            return replace(load_checkpoint(path), rejected=tuple(rejected))
        except ValueError as error:
            rejected.append(str(error))
    if rejected:
        raise ValueError("\n  ".join(["every checkpoint of the run is damaged:", *rejected]))
    return None


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield the file behind last.ckpt, the other updates from the newest, and the best; each file once."""
    names = [folder / "last.ckpt", *update_files(folder).values(), folder / "best.ckpt"]
    yield from dict.fromkeys(path.resolve() for path in names if path.is_file())
