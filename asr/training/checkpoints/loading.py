"""Reads checkpoints: every part must match its checksum, and no code in them runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asr.errors import explaining_out_of_memory
from asr.models.pretrained.files import read_tensors
from asr.run_folder import update_files
from asr.safe_io import named_path
from asr.training.running_averages import RunningAverages

FORMAT = 2  # raise it when a class or callback of a run is renamed: checkpoints hold their names
PREFIX = "recognizer."
AVERAGES = "averages"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint holds.

    Attributes:
        path: the file.
        weights: parameters and buffers of the recognizer by name.
        config: composed config of the run, not trusted.
        tokenizer: state of the tokenizer.
        data: fingerprint, folder and notes of the data.
        update: number of updates that led to the weights.
        averages: running averages of the weights; None without callbacks.averaging.
        described: kind of the weights, for notes.
        rejected: what is wrong with each newer checkpoint of the run that could not be read.
        state: all of its content, to resume from; None to decode.
    """

    path: Path
    weights: dict[str, torch.Tensor]
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    data: dict[str, Any]
    update: int
    averages: RunningAverages | None = None
    described: str = "raw"
    rejected: tuple[str, ...] = ()
    state: dict[str, Any] | None = None

    @property
    def run_dir(self) -> Path | None:
        """Folder of the run; None if the file lies elsewhere."""
        return run_folder_of(self.path)

    @property
    def title(self) -> str:
        """Name of the run, or else of the file, and the update."""
        return f"{(self.run_dir or self.path).resolve().name}, update {self.update}"

    def decoding_note(self) -> str:
        """Return a note that names the checkpoint and the kind of weights, for results."""
        return f"decoded with {self.path.name} of update {self.update}, weights: {self.described}"


def run_folder_of(path: Path) -> Path | None:
    """Return the folder of the run whose checkpoint a file is; None if it lies elsewhere."""
    folder = path.absolute().parent
    return folder.parent if folder.name == "checkpoints" else None


def checkpoint_file(run: str, option: str = "run") -> Path:
    """Return the checkpoint that an option names: a file, or the best (else the last) of a run's folder.

    Raises:
        ValueError: it is neither.
    """
    path = named_path(run)
    for file in (path, *(path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))):
        if file.is_file():
            return file
    raise ValueError(
        f"{option}: {str(path)!r} is neither a checkpoint nor a run folder with checkpoints/best.ckpt; "
        "give the folder that asr-train printed at its end"
    )


def load_checkpoint(path: Path, to_resume: bool = False) -> LoadedCheckpoint:
    """Read a checkpoint without running any code that it may hold.

    Args:
        path: of the file.
        to_resume: keep all of its content, statistics of the optimizer among it.

    Raises:
        ValueError: the file is damaged, of another format, or not a checkpoint.
        OutOfMemory: it does not fit into memory.
    """
    with explaining_out_of_memory(lambda: f"when reading {path}: free some, or raise its limit (ulimit -v)"):
        state = read_tensors(path)
    contents = state.get("werdict") if isinstance(state, Mapping) else None
    if contents is None or contents["format"] != FORMAT:
        problem = (
            "no part 'werdict'" if contents is None else f"format {contents['format']}; this version reads {FORMAT}"
        )
        raise ValueError(f"{path} is not a checkpoint of this program: it has {problem}")
    weights = {
        name.removeprefix(PREFIX): weight for name, weight in state["state_dict"].items() if name.startswith(PREFIX)
    }
    averages = RunningAverages.from_state(state[AVERAGES]) if AVERAGES in state else None
    return LoadedCheckpoint(
        path,
        weights,
        contents["config"],
        contents["tokenizer"],
        contents["data"],
        state["global_step"],
        averages,
        state=state if to_resume else None,
    )


def newest_good_checkpoint(run_dir: Path) -> LoadedCheckpoint | None:
    """Return the newest checkpoint of a run that can be read, to resume it; None if the run has no checkpoint.

    Raises:
        ValueError: all checkpoints are damaged.
    """
    rejected: list[str] = []
    folder = run_dir / "checkpoints"
    names = [folder / "last.ckpt", *update_files(folder).values(), folder / "best.ckpt"]
    # last.ckpt is a link, best.ckpt may be one: read each file once
    for path in dict.fromkeys(path.resolve() for path in names if path.is_file()):
        try:
            return replace(load_checkpoint(path, to_resume=True), rejected=tuple(rejected))
        except ValueError as error:
            rejected.append(str(error))
    if rejected:
        damaged = ValueError("every checkpoint of the run is damaged:")
        for problem in rejected:
            damaged.add_note(f"  {problem}")
        raise damaged
    return None
