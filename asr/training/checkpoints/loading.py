"""Reads checkpoints, which may be damaged or come from strangers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asr.error_text import is_out_of_memory
from asr.errors import explaining_out_of_memory
from asr.safe_io import named_path
from asr.training.checkpoints.content_checks import (
    check_averages,
    check_contents,
    check_weights,
    check_werdict,
    count_at,
    mapping_at,
)
from asr.training.checkpoints.file_checks import damage, why_unreadable
from asr.training.checkpoints.files import update_files
from asr.training.running_averages import RunningAverages

FORMAT = 2  # raise it when a class or callback of a run is renamed: checkpoints hold their names
PREFIX = "recognizer."
AVERAGES = "averages"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint holds.

    Attributes:
        path: the file.
        weights: of the recognizer, by name.
        config: composed config of the run, plain data; not to be trusted.
        tokenizer: state of the tokenizer.
        data: fingerprint, folder and notes of the data.
        update: number of updates that led to the weights.
        callbacks: state of the run's callbacks, by name.
        averages: of the weights so far; None if the run averages none.
        described: the kind of weights.
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

    @property
    def run_dir(self) -> Path | None:
        """Folder of the run; None if the file lies elsewhere."""
        return run_folder_of(self.path)

    @property
    def title(self) -> str:
        """Name of the run, or else of the file, and the update."""
        return f"{(self.run_dir or self.path).resolve().name}, update {self.update}"

    def decoding_note(self) -> str:
        """Return the note that leads from hypotheses to the weights that they were decoded with."""
        return f"decoded with {self.path.name} of update {self.update}, weights: {self.described}"


def run_folder_of(path: Path) -> Path | None:
    """Return the folder of the run whose checkpoint a file is; None if it lies elsewhere."""
    folder = path.absolute().parent
    return folder.parent if folder.name == "checkpoints" else None


def checkpoint_file(run: str, option: str = "run") -> Path:
    """Return the checkpoint that an option names: a file, or the best (else the last) of a run's folder.

    Raises:
        ValueError: it is neither, or a link leads to a checkpoint that is not of the run.
    """
    path = named_path(run)
    if path.is_file():
        return path
    for found in (path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")):
        if found.is_file():
            if not (target := found.resolve()).is_relative_to(found.parent.resolve()):
                raise ValueError(
                    f"{option}: {found} is a link to {target}, which this run has not made; name that itself"
                )
            return found
    raise ValueError(
        f"{option}: {str(path)!r} is neither a checkpoint nor a run folder with checkpoints/best.ckpt; "
        "give the folder that asr-train printed at its end"
    )


def load_checkpoint(path: Path) -> LoadedCheckpoint:
    """Read a checkpoint without running any code that it may hold.

    Raises:
        ValueError: the file is damaged, of another format, or no checkpoint.
        OutOfMemory: it does not fit into memory.
    """
    with explaining_out_of_memory(lambda: f"when reading {path}: free some, or raise its limit (ulimit -v)"):
        problem = damage(path)
        if problem:
            raise ValueError(f"{path} is damaged, or no checkpoint: {problem}; give another one of checkpoints/")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)  # or the pickle could run code
            check_contents(state, path.stat().st_size)
            return _loaded(path, state)
        # a stranger's file can make the unpickler raise anything
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(f"{path} is not a checkpoint of this program: {why_unreadable(error)}") from error


def _loaded(path: Path, state: object) -> LoadedCheckpoint:
    """Return the parts of a checkpoint, each checked for its type."""
    if not isinstance(state, Mapping):
        raise ValueError(f"it is a {type(state).__name__}")
    extra, all_weights = mapping_at(state, "werdict"), mapping_at(state, "state_dict")
    if extra.get("format") != FORMAT:
        raise ValueError(f"its format is {extra.get('format')!r:.80}; this version reads {FORMAT}")
    check_werdict(extra)
    # as a recognizer has them: numbers of 64 bits may be too large for 32
    check_weights(all_weights, "state_dict", torch.float32)
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in all_weights.items() if name.startswith(PREFIX)}
    averages = mapping_at(state, AVERAGES) if AVERAGES in state else None
    if averages is not None:
        check_averages(averages, weights, count_at(state, "global_step"))
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
    """Return the newest checkpoint of a run that can be read; None if the run has no checkpoint.

    Raises:
        ValueError: all checkpoints are damaged.
    """
    rejected: list[str] = []
    folder = run_dir / "checkpoints"
    names = [folder / "last.ckpt", *update_files(folder).values(), folder / "best.ckpt"]
    # last.ckpt is a link, best.ckpt may be one: read each file once
    for path in dict.fromkeys(path.resolve() for path in names if path.is_file()):
        try:
            return replace(load_checkpoint(path), rejected=tuple(rejected))
        except ValueError as error:
            rejected.append(str(error))
    if rejected:
        damaged = ValueError("every checkpoint of the run is damaged:")
        for problem in rejected:
            damaged.add_note(f"  {problem}")
        raise damaged
    return None
