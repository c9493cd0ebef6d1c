"""Counts and sums of an update: Lightning's counters, and losses summed over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import Tensor


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


ZERO = torch.zeros(())  # a 0-dim CPU tensor can be added to one of a GPU, and takes its device


class UpdateSums(NamedTuple):
    """Sums of one rank, as float32 scalars if a device computes them, or of all ranks, all as such scalars; P parts.

    Attributes:
        num_utterances: that were read.
        audio_s: seconds of their audio.
        num_unreadable: utterances that could not be read.
        loss: nats.
        num_tokens: target tokens; those of utterances that are too short do not count.
        num_too_short: utterances too short for their transcript.
        num_nonfinite: ranks whose gradients are not finite.
        parts: (P,) of the loss, in nats, or one 0 for all.
    """

    num_utterances: Any = 0.0
    audio_s: Any = 0.0
    num_unreadable: Any = 0.0
    loss: Any = ZERO
    num_tokens: Any = ZERO
    num_too_short: Any = ZERO
    num_nonfinite: Any = ZERO
    parts: Any = ZERO

    def plus(self, **terms: Tensor | float) -> UpdateSums:
        """Return the sums with one term more, () or of ``parts`` (P,), for each name; waits for no device."""
        # no item(): reading a sum of a GPU would wait for the whole backward pass
        return self._replace(**{name: getattr(self, name) + term for name, term in terms.items()})

    def over_ranks(self, world_size: int, device: torch.device, num_parts: int) -> UpdateSums:
        """Return the sums over all ranks on a device, by one reduction for all; waits for no device."""
        counts = torch.tensor([self.num_utterances, self.audio_s, self.num_unreadable])
        computed = self.loss, self.num_tokens, self.num_too_short, self.num_nonfinite
        # of a rank that could read nothing they are zeros on the CPU, one for all parts
        every = counts, *(value.expand(1) for value in computed), self.parts.expand(num_parts)
        sums = torch.cat([value.to(device, non_blocking=True) for value in every])
        if world_size > 1:
            dist.all_reduce(sums)  # Lightning's own reduction waits for the devices of all ranks before it
        return UpdateSums(*sums[:-num_parts].unbind())._replace(parts=sums[-num_parts:])

    def per_token(self, prefix: str, part_names: Sequence[str]) -> dict[str, Tensor]:
        """Return what sums over all ranks give to log: the loss per target token and, if it has several, its parts.

        They are NaN if there are no tokens.
        """
        # of a loss with one part that is all
        parts = zip(part_names, self.parts, strict=True) if len(part_names) > 1 else ()
        numbers = {f"{prefix}/loss": self.loss, **{f"{prefix}/{name}_loss": part for name, part in parts}}
        return {name: number / self.num_tokens for name, number in numbers.items()}


class NominalAudio:
    """Counts the seconds of audio that updates may hold at most, on all ranks.

    The seconds that they do hold would have to be summed and saved; the maximum follows from the number of updates, as
    long as their size is constant. When the number of processes changes, a new count starts.

    Attributes:
        update: all later updates have the same size.
        audio_s: seconds of audio up to this update.
    """

    def __init__(self) -> None:
        self.update, self.audio_s = 0, 0.0

    def read(self, update: int, update_s: float) -> float:
        """Return the seconds in all updates up to ``update``; those after ``self.update`` hold ``update_s`` each."""
        return self.audio_s + (update - self.update) * update_s

    def state_dict(self, update_s: float) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"update": self.update, "audio_s": self.audio_s, "update_s": update_s}

    def load_state_dict(self, state: Mapping[str, Any], update: int, update_s: float) -> None:
        """Continue after ``update``, with updates of ``update_s`` from now on."""
        self.update, self.audio_s = int(state["update"]), float(state["audio_s"])
        # only if the size has changed: a sum in two parts may differ in its last bit from that of an uninterrupted run
        if update_s != state["update_s"]:
            self.update, self.audio_s = update, self.read(update, state["update_s"])
