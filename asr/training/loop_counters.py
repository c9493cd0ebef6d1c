"""Where a run stands between its updates, in the counters of Lightning's loops."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl


def ends_update(trainer: pl.Trainer) -> bool:
    """Return whether the micro-batch that just ended was the last of its update."""
    # also true for the last micro-batch of an epoch, where Lightning updates with those that it has
    return not trainer.fit_loop._should_accumulate()


def is_last_update(trainer: pl.Trainer) -> bool:
    """Return whether all updates of the budget are done."""
    return trainer.global_step >= trainer.max_steps


def validates_next(trainer: pl.Trainer) -> bool:
    """Return whether a validation follows the update that just ended; one always follows the last update."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None  # set once training has started
    # Lightning's own rule has many cases (val_check_interval, end of epoch, should_stop): a copy of it would differ
    due = loop.epoch_loop._should_check_val_fx(loop._data_fetcher)
    return due or (trainer.enable_validation and is_last_update(trainer))


def number_logged_update(trainer: pl.Trainer) -> None:
    """Let loggers number the last update from 0: Lightning (2.6) counts one too many or too few after a resumption."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = max(0, trainer.global_step - 1)


def mark_ended(checkpoint: dict[str, Any]) -> None:
    """Count the current micro-batch of a checkpoint as complete, and no validation as open.

    Lightning (2.6) calls callbacks before it counts the micro-batch as completed. From such a checkpoint it resumes at
    the wrong place if the micro-batch was the last of its epoch, or if a validation had been started twice.
    """
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]  # the loggers' step
    for part in (progress["current"], progress["total"]):
        part["completed"] = part["processed"]
    validation = loop["epoch_loop.val_loop.batch_progress"]
    for part in (validation["current"], validation["total"]):
        part.update(dict.fromkeys(("ready", "started", "processed"), part["completed"]))


def count_by_updates(checkpoint: dict[str, Any], accumulate: int) -> None:
    """Count the micro-batches of a checkpoint as if all its updates had had ``accumulate`` of them.

    Lightning (2.6) validates after multiples of a number of micro-batches: they would not fall on ends of updates.
    """
    total = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
    total.update(dict.fromkeys(total, checkpoint["global_step"] * accumulate))


def mark_validating(checkpoint: dict[str, Any]) -> None:
    """Let Lightning repeat the validation of this update: it looks for one batch started and none completed."""
    validation = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    for part, done in ((validation["current"], 0), (validation["total"], validation["total"]["completed"])):
        part.update(ready=done + 1, started=done + 1, processed=done, completed=done)
