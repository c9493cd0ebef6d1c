"""Which weights of a checkpoint decode: those of its update, their mean over a span of updates, or a moving average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from asr.training.checkpoint_files import update_files
from asr.training.checkpoints import LoadedCheckpoint, load_checkpoint
from asr.training.running_averages import Mark, RunningAverages

KINDS = ("raw", "average", "ema")


def check_kind(kind: object, since: object = None) -> None:
    """Refuse options that name no weights.

    Raises:
        ValueError: ``kind`` is none, or ``since`` no number of an update, or given without an average.
    """
    if kind not in KINDS:
        raise ValueError(f"weights must be one of {', '.join(KINDS)}, given {kind!r}")
    if since is None:
        return
    if not isinstance(since, int) or isinstance(since, bool) or since < 0:
        raise ValueError(f"average_since must be the number of an update, or null, given {since!r}")
    if kind != "average":
        raise ValueError(f"average_since={since} is for weights=average, given weights={kind}")


def choose_weights(checkpoint: LoadedCheckpoint, kind: str, since: int | None = None) -> LoadedCheckpoint:
    """Return a checkpoint with other weights in their place, and their description.

    Buffers, such as the statistics of features, are not averaged: they are those of the checkpoint.

    Args:
        checkpoint: as it was read.
        kind: of ``KINDS``.
        since: the update behind which the mean begins, which another checkpoint beside this one has, or 0; None: the
            older mark of this one, which has between a quarter and 44 % of training behind it.

    Raises:
        ValueError: an option is wrong, or the checkpoint has no such weights.
    """
    check_kind(kind, since)
    if kind == "raw":
        return checkpoint
    averages = checkpoint.averages
    lacking = why_lacking(checkpoint, kind)
    if lacking or averages is None:
        raise ValueError(f"weights={kind}: {checkpoint.path} has none; {lacking}")
    if kind == "ema" and averages.ema is not None:
        return _with(checkpoint, averages.ema, f"exponential moving average of update {averages.update}")
    mean, begun = _mean(checkpoint.path, averages, since)
    return _with(checkpoint, mean, f"average of updates {begun + 1} to {averages.update}")


def why_lacking(checkpoint: LoadedCheckpoint, kind: str) -> str:
    """Return why a checkpoint does not have weights of a kind; nothing if it has them."""
    averages = checkpoint.averages
    if kind == "raw":
        return ""
    if averages is None:
        return "it was trained without callbacks.averaging, and has weights=raw alone"
    if not averages.num:
        return "no update was averaged yet (callbacks.averaging.every), and it has weights=raw alone"
    if kind == "ema" and averages.ema is None:
        return "it was trained with callbacks.averaging.ema_decay=null, and has weights=raw and average"
    return ""


def _mean(path: Path, averages: RunningAverages, since: int | None) -> tuple[dict[str, Tensor], int]:
    """Return a mean, and the update behind which it begins."""
    mark, others = averages.marks[0], update_files(path.parent)
    if since is None or (since == mark.update and since not in others):
        return averages.mean_since(mark), mark.update
    if since == averages.begun:
        return averages.mean_since(Mark(since, 0, {})), since
    if since not in others:
        allowed = sorted(u for u in {averages.begun, mark.update, *others} if averages.begun <= u < averages.update)
        raise ValueError(
            f"average_since={since}: no checkpoint of that update is beside {path}; "
            f"allowed: {', '.join(map(str, allowed))}, or null for {mark.update}"
        )
    earlier = load_checkpoint(others[since]).averages
    if earlier is None or earlier.begun != averages.begun or earlier.num >= averages.num:
        raise ValueError(f"average_since={since}: no update was averaged between {others[since]} and {path}")
    return averages.mean_behind(earlier), since


def _with(checkpoint: LoadedCheckpoint, averaged: Mapping[str, Tensor], described: str) -> LoadedCheckpoint:
    unknown = averaged.keys() - checkpoint.weights.keys()
    if unknown:
        raise ValueError(f"{checkpoint.path}: averages of unknown weights: {', '.join(sorted(unknown))}")
    changed = {name: mean.to(checkpoint.weights[name].dtype) for name, mean in averaged.items()}
    return replace(checkpoint, weights={**checkpoint.weights, **changed}, described=described)
