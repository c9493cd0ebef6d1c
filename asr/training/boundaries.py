"""Where training stands between its updates, as Lightning counts."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl


def ends_update(trainer: pl.Trainer) -> bool:
    """Return whether the micro-batch that just ended was the last of its update."""
    return not trainer.fit_loop._should_accumulate()


def is_last_update(trainer: pl.Trainer) -> bool:
    """Return whether the budget is used up."""
    return trainer.global_step >= trainer.max_steps


def validates_next(trainer: pl.Trainer) -> bool:
    """Return whether a validation follows the update that just ended; training ends with one too."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    # asked the way Lightning itself asks, because its rule has many cases
    due = loop.epoch_loop._should_check_val_fx(loop._data_fetcher)
    return due or (trainer.enable_validation and is_last_update(trainer))


def mark_ended(checkpoint: dict[str, Any]) -> None:
    """Let a checkpoint written while a micro-batch ends be one that was written behind it, with no validation open.

    Lightning resumes it wrongly where the micro-batch was the last of its epoch, or a validation was begun twice.
    """
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    if progress["current"]["completed"] < progress["current"]["processed"]:
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    for part in (progress["current"], progress["total"]):
        part["completed"] = part["processed"]
    validation = loop["epoch_loop.val_loop.batch_progress"]
    for part in (validation["current"], validation["total"]):
        part.update(dict.fromkeys(("ready", "started", "processed"), part["completed"]))


def mark_validating(checkpoint: dict[str, Any]) -> None:
    """Let Lightning begin the validation of an update again: one batch started, none done, is what it looks for."""
    validation = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    for part, done in ((validation["current"], 0), (validation["total"], validation["total"]["completed"])):
        part.update(ready=done + 1, started=done + 1, processed=done, completed=done)
