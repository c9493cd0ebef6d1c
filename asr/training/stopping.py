"""Callbacks that stop a run before all its updates are done: what they may monitor, and which of them did it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from asr.errors import RunFailed


def check_monitors(callbacks: Iterable[pl.Callback], dev_names: Sequence[str] | None = None) -> None:
    """Refuse a callback that monitors a metric that no validation logs.

    Args:
        callbacks: of the run.
        dev_names: of the development sets; None: not known yet.

    Raises:
        ValueError: names the metrics that are logged.
    """
    names = ["NAME"] if dev_names is None else dev_names
    known = ["val/wer", *(f"val/{name}/{metric}" for name in names for metric in ("wer", "cer"))]
    for callback in callbacks:
        if not isinstance(callback, EarlyStopping):
            continue
        may_fit = dev_names is None and re.fullmatch(r"val/.+/(wer|cer)", callback.monitor)
        if callback.monitor not in known and not may_fit:
            raise ValueError(
                f"callbacks: EarlyStopping cannot monitor {callback.monitor!r:.80}; allowed: {', '.join(known)}"
            )
        # an epoch may end before the first validation
        if callback._check_on_train_epoch_end:  # Lightning (2.6) has no public name for it
            raise ValueError(
                "callbacks: EarlyStopping with check_on_train_epoch_end=true would look for a metric too early: "
                "validations are counted in updates; leave it out"
            )


def keep_patience(callbacks: Iterable[pl.Callback], states: Mapping[str, dict[str, Any]]) -> None:
    """Put the patience of now into the states of callbacks, where Lightning (2.6) would restore the old one.

    Args:
        callbacks: of the run that is resumed.
        states: of its checkpoint, changed in place.
    """
    for callback in callbacks:
        if isinstance(callback, EarlyStopping) and callback.state_key in states:
            states[callback.state_key]["patience"] = callback.patience


def refuse_end_without_update(trainer: pl.Trainer, first_update: int) -> None:
    """Fail a run that a callback has stopped before its first update.

    Args:
        trainer: of the run, which has ended.
        first_update: from which the run was started or resumed.

    Raises:
        RunFailed: names the callback.
    """
    if trainer.global_step == first_update:
        early = why_early(trainer)
        if early:
            raise RunFailed(f"the run made no update: {early}. Remove that callback, or change its options")


def why_early(trainer: pl.Trainer) -> str:
    """Return which callback has stopped a run, and when; empty if all updates are done."""
    if trainer.global_step >= trainer.max_steps:
        return ""
    reasons = "; ".join(_reasons(trainer)) or "a callback asked for it"
    return f"stopped at update {trainer.global_step} of {trainer.max_steps}: {reasons}"


def _reasons(trainer: pl.Trainer) -> Iterator[str]:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer):
            left = callback.time_remaining()  # None without a duration
            if left is not None and left <= 0:
                duration = datetime.timedelta(seconds=callback.time_elapsed() + left)
                yield f"the duration {duration} of the callback Timer is over"
        elif isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            said = (callback.stopping_reason_message or "").removesuffix(" Signaling Trainer to stop.")
            yield f"by the callback EarlyStopping: {said.rstrip('.')}"
