"""Chooses the weights to decode with: those of an update, their mean over several updates, or a moving average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from asr.models.recognizer import Recognizer
from asr.run_folder import update_files
from asr.training.checkpoints.loading import LoadedCheckpoint, load_checkpoint
from asr.training.running_averages import Mark, RunningAverages

KINDS = ("raw", "average", "ema")


def choose_weights(checkpoint: LoadedCheckpoint, kind: str, since: int | None = None) -> LoadedCheckpoint:
    """Return a checkpoint with the weights of a kind, and their description.

    Buffers, such as the statistics of features, are not averaged: they stay those of the checkpoint.

    Args:
        checkpoint: a checkpoint with its raw weights.
        kind: one of ``KINDS``.
        since: the mean starts after this update, which needs a checkpoint in the same folder, or is 0; None: after the
            older mark of this checkpoint, which covers its newest 25 to 44 % of updates.

    Raises:
        ValueError: an option is wrong, or the checkpoint has no such weights.
    """
    if kind not in KINDS:
        raise ValueError(f"weights must be one of {', '.join(KINDS)}, given {kind!r}")
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


def why_missing(checkpoint: LoadedCheckpoint, kind: str) -> str:
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
