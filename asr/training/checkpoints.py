"""Checkpoints: their files, averages of weights, loading, and which weights decode."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from asr.former_names import with_present_names
from asr.models import devices
from asr.models.pretrained import read_tensors
from asr.models.recognizer import Recognizer
from asr.run.folder import PARTS, newest_update, resume_command, update_files
from asr.run.options import WeightKind
from werdict.errors import RunFailed, explaining_out_of_memory, remedy
from werdict.files import TEMPORARY, WITHOUT_LINKS, named_path, replace_by, sync, write_more

FORMAT = 2  # raise it when a class or callback of a run is renamed: checkpoints hold their names
PREFIX = "recognizer."
AVERAGES = "averages"
SPAN = 0.25  # a mean since the older mark covers at least this share of all updates
NUMBERS = ("start_update", "update", "num_averaged", "ema_updates")  # attributes that a state holds as they are
CPU = torch.device("cpu")

Weights = Mapping[str, Tensor]


def update_file(folder: Path, update: int) -> Path:
    """Return the path of the checkpoint after an update."""
    return folder / f"update-{update:06d}.ckpt"


def write(state: Any, path: Path) -> None:
    """Write plain data and tensors to a file, and wait until they are on the disk.

    Raises:
        OSError: the disk is full, or writing is not allowed; an existing file is unchanged.
    """

    def save(temporary: Path) -> None:
        try:
            torch.save(state, temporary)
        except RuntimeError:
            # torch (2.13) reports a full disk as "PytorchStreamWriter failed"; the system says why
            write_more(temporary)
            raise
        sync(temporary)

    replace_by(path, save)


def point_link(link: Path, target: Path) -> None:
    """Point a symbolic link at a file of the same folder; where the file system has no links, make a copy."""
    try:
        replace_by(link, lambda temporary: temporary.symlink_to(target.name))
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        duplicate(target, link)


def duplicate(source: Path, path: Path) -> None:
    """Make ``path`` a hard link to a file, or a copy if the file system has no hard links."""

    def make(temporary: Path) -> None:
        try:
            temporary.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, temporary)
            sync(temporary)

    replace_by(path, make)


def remove_temporary(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def prune_checkpoints(folder: Path, newest: int, keep: int) -> None:
    """Keep the ``keep`` newest checkpoints up to an update; remove older ones, and later ones that were abandoned."""
    # best.ckpt is a hard link or a copy: it stays when its update is removed
    files = update_files(folder)
    to_keep = [update for update in files if update <= newest][:keep]
    for update, path in files.items():
        if update not in to_keep:
            path.unlink(missing_ok=True)
    remove_unused_parts(folder)


def remove_unused_parts(folder: Path) -> None:
    """Remove what several processes have written of checkpoints that are gone, or were never complete."""
    if parts := [*folder.glob(f"*.{PARTS}")]:
        contents = (read_tensors(file) for file in folder.glob("*.ckpt") if file.is_file())
        used = {content[PARTS]["folder"] for content in contents if PARTS in content}
        for part in parts:
            if part.name not in used:
                shutil.rmtree(part, ignore_errors=True)


def has_parts(path: Path) -> bool:
    """Return whether a checkpoint's tensors are in a folder beside it, as several processes have written them."""
    return PARTS in read_tensors(path)


def join_parts(folder: Path) -> None:
    """Make one file of each checkpoint of a folder that several processes have written."""
    for path in folder.glob("*.ckpt"):
        if not path.is_symlink() and has_parts(path):
            write(read_complete(path), path)
    remove_unused_parts(folder)


def read_complete(path: Path) -> Any:
    """Return the content of a checkpoint, with the tensors that are in a folder beside it."""
    content = read_tensors(path)
    if not isinstance(content, dict) or PARTS not in content:
        return content
    from asr.training.sharded_checkpoints import completed  # torch's modules take 0.2 s

    return completed(content, path)


@contextlib.contextmanager
def explaining_failed_writes(run_dir: Path) -> Iterator[None]:
    """Say which file of a run could not be written, why, and from where the run can be resumed.

    Raises:
        RunFailed: the disk is full, a quota is used up, writing is not allowed, or the run's folder is gone.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT and not (run_dir / "config.yaml").is_file():
            raise RunFailed(
                f"{run_dir}, the folder of this run, was removed or renamed while in use, so nothing can be written to "
                "it; if it was renamed, rename it back, or start a new run"
            ) from error
        raise RunFailed(
            f"{error.filename or run_dir} could not be written: {error.strerror or error}; {remedy(error)}, "
            f"then {how_to_resume(run_dir)}"
        ) from error


def how_to_resume(run_dir: Path) -> str:
    """Return the command that resumes a run, and from where it does."""
    newest = newest_update(run_dir / "checkpoints")
    where = f"continues from update {newest}" if newest is not None else "starts again: it has no checkpoint yet"
    return f"{resume_command(run_dir)} {where}"


@dataclass(frozen=True)
class Mark:
    """A point from which an average can be taken.

    Attributes:
        update: the average starts after this one.
        num_averaged: updates averaged before it.
        mean: their mean in float32; empty if there were none.
    """

    update: int
    num_averaged: int
    mean: Weights


class RunningAverages:
    """The sum of the weights after each update, that sum at two earlier updates, and a moving average.

    The difference of two sums gives the mean over the updates in between, as icefall computes it from two checkpoints.
    Sums are float64: a mean over updates up to n has an error of at most n · 1.1e-16 of the weights' size, because both
    sums share all rounding before the span.

    With two marks one checkpoint is enough for a mean over its newest updates. When a quarter of all updates follow the
    newer mark, the older one is dropped and a new one set: 25 to 44 % of all updates always follow the older mark. A
    mark is float32, and a mean since then is correct to 2e-7.

    The moving average is float32. After t updates its decay is min(decay, (1 + t) / (10 + t)): at first it covers about
    the last ninth of the updates.

    Args:
        weights: give names, shapes and device of the averages.
        start_update: averaging starts after this one.

    Reference:
        ``average_checkpoints_with_averaged_model`` of icefall/checkpoint.py, k2-fsa/icefall, for the difference.
        ``tf.train.ExponentialMovingAverage`` of TensorFlow, for the decay.
        Differs: icefall stores means instead of sums, and has no marks.
    """

    def __init__(self, weights: Weights, start_update: int = 0) -> None:
        self.start_update = self.update = start_update
        self.num_averaged = self.ema_updates = 0
        device = next((weight.device for weight in weights.values()), CPU)
        sizes = [weight.numel() for weight in weights.values()]
        self.flat = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        parts = zip(weights.items(), self.flat.split(sizes), strict=True)
        self.sum = {name: part.view(weight.shape) for (name, weight), part in parts}
        self.marks = [Mark(start_update, 0, {})]
        self.ema: dict[str, Tensor] | None = None

    @torch.no_grad()
    def add(self, update: int, weights: Weights, ema_decay: float | None, num_updates: int = 1) -> None:
        """Add the weights after an update.

        Args:
            update: its number; the first is 1.
            weights: names and shapes as in the constructor.
            ema_decay: per update; None: no moving average.
            num_updates: number of updates since the last call.
        """
        newest = [weights[name].float() for name in self.sum]
        # into float64: a float32 sum loses more digits with every update
        if devices.on_accelerator(self.flat):
            # at once: a thousand kernels would take longer than the update
            self.flat.add_(torch.cat([weight.flatten() for weight in newest]))
        else:
            torch._foreach_add_(list(self.sum.values()), newest)
        self.num_averaged, self.update = self.num_averaged + 1, update
        if update - self.marks[-1].update >= SPAN * update:
            mean = {name: (total / self.num_averaged).float() for name, total in self.sum.items()}
            self.marks = [self.marks[-1], Mark(update, self.num_averaged, mean)]
        self._update_ema(newest, ema_decay, num_updates)

    def _update_ema(self, newest: list[Tensor], decay: float | None, num_updates: int) -> None:
        if decay is None:
            self.ema, self.ema_updates = None, 0
            return
        if self.ema is None:
            self.ema = {name: weight.clone() for name, weight in zip(self.sum, newest, strict=True)}
        # with a constant 0.9999 a third of the average would be the initial weights after ten thousand updates
        decay = min(decay, (1 + self.ema_updates) / (10 + self.ema_updates)) ** num_updates
        get_ema_multi_avg_fn(decay)(list(self.ema.values()), newest, 0)
        self.ema_updates += num_updates

    def mean_since(self, mark: Mark) -> dict[str, Tensor]:
        """Return the float64 mean of all weights added after a mark."""
        num = self.num_averaged - mark.num_averaged
        if not mark.num_averaged:
            return {name: total / num for name, total in self.sum.items()}
        return {name: (total - mark.num_averaged * mark.mean[name].double()) / num for name, total in self.sum.items()}

    def mean_after(self, earlier: RunningAverages) -> dict[str, Tensor]:
        """Return the float64 mean of all weights added after another checkpoint of the run."""
        num = self.num_averaged - earlier.num_averaged
        return {name: (total - earlier.sum[name]) / num for name, total in self.sum.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain data, for a checkpoint."""
        marks = [{**vars(mark)} for mark in self.marks]
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return {**numbers, "sum": dict(self.sum), "marks": marks, "ema": self.ema}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device = CPU) -> RunningAverages:
        """Restore the averages of a ``state_dict`` on a device."""
        sums = _on(device, state["sum"])
        averages = cls(sums)
        for name in NUMBERS:
            setattr(averages, name, state[name])
        for name, total in averages.sum.items():
            total.copy_(sums[name])
        averages.marks = [
            Mark(mark["update"], mark["num_averaged"], _on(device, mark["mean"])) for mark in state["marks"]
        ]
        averages.ema = None if state["ema"] is None else _on(device, state["ema"])
        return averages


def _on(device: torch.device, weights: Weights) -> dict[str, Tensor]:
    return {name: weight.to(device) for name, weight in weights.items()}


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
        state = read_complete(path)
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
        with_present_names(contents["config"]),
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


def choose_weights(checkpoint: LoadedCheckpoint, kind: WeightKind, since: int | None = None) -> LoadedCheckpoint:
    """Return a checkpoint with the weights of a kind, and their description.

    Buffers, such as the statistics of features, are not averaged: they stay those of the checkpoint.

    Args:
        checkpoint: a checkpoint with its raw weights.
        kind: ``raw``, ``average`` or ``ema``.
        since: the mean starts after this update, which needs a checkpoint in the same folder, or is 0; None: after the
            older mark of this checkpoint, which covers its newest 25 to 44 % of updates.

    Raises:
        ValueError: an option is wrong, or the checkpoint has no such weights.
    """
    if since is not None and kind != "average":
        raise ValueError(f"average_since={since} is for weights=average, given weights={kind}")
    if kind == "raw":
        return checkpoint
    averages = checkpoint.averages
    if (reason := why_missing(checkpoint, kind)) or averages is None:
        raise ValueError(f"weights={kind}: {checkpoint.path} has none; {reason}")
    averaged, described = averages.ema, f"exponential moving average of update {averages.update}"
    if averaged is None or kind == "average":
        averaged, start = _mean(checkpoint.path, averages, since)
        described = f"average of updates {start + 1} to {averages.update}"
    changed = {name: mean.to(checkpoint.weights[name].dtype) for name, mean in averaged.items()}
    return replace(checkpoint, weights={**checkpoint.weights, **changed}, described=described)


def why_missing(checkpoint: LoadedCheckpoint, kind: WeightKind) -> str:
    """Return why a checkpoint lacks weights of a kind; empty if it has them."""
    averages = checkpoint.averages
    if kind == "raw":
        return ""
    if averages is None or not averages.num_averaged:
        return "no update was averaged (see callbacks.averaging.every), so it has only weights=raw"
    if kind == "ema" and averages.ema is None:
        return "it was trained with callbacks.averaging.ema_decay=null, so it has only weights=raw and average"
    return ""


def _mean(path: Path, averages: RunningAverages, since: int | None) -> tuple[dict[str, Tensor], int]:
    """Return a mean, and the update after which it starts."""
    mark, others = averages.marks[0], update_files(path.parent)
    if since is None or (since == mark.update and since not in others):
        return averages.mean_since(mark), mark.update
    if since == averages.start_update:
        return averages.mean_since(Mark(since, 0, {})), since  # over the whole run
    # the difference of its sums to ours is the span
    earlier = load_checkpoint(others[since]).averages if since in others else None
    same_start = earlier is not None and earlier.start_update == averages.start_update
    if earlier is None or not same_start or earlier.num_averaged >= averages.num_averaged:
        updates = {averages.start_update, mark.update, *others}
        allowed = sorted(update for update in updates if averages.start_update <= update < averages.update)
        raise ValueError(
            f"average_since={since}: no earlier checkpoint of that update is next to {path}; "
            f"allowed: {', '.join(map(str, allowed))}, or null for {mark.update}"
        )
    return averages.mean_after(earlier), since


def load_weights(recognizer: Recognizer, weights: Mapping[str, Tensor]) -> None:
    """Load weights into the recognizer that a config describes; it keeps its own of those that checkpoints leave out.

    Raises:
        ValueError: their names or shapes are others; torch names them.
    """
    try:
        state = recognizer.state_dict()
        recognizer.load_state_dict({name: state[name] for name in recognizer.unsaved} | dict(weights))
    except RuntimeError as error:
        # after a line about the class, torch writes one of all names or one of a shape
        reason = str(error).partition("\n")[2].strip().partition("\n")[0]
        raise ValueError(f"its weights do not fit its config: {reason[:300]}") from error
