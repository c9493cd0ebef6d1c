"""Counts and names what a run leaves out: updates that are not finite, unreadable and too short utterances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.data.loading.loader import Batch
from asr.models import devices
from asr.models.heads.protocols import Losses
from asr.training.processes import gather
from werdict.console import console
from werdict.errors import Diverged, RunFailed

NUM_NAMED = 5  # utterances, and skipped updates in a row, of which then each tenth is named
MAX_CONSECUTIVE_SKIPS = 50  # after which the run fails


class UnreadableCuts:
    """Counts utterances that could not be read, on all ranks, in the whole run and in the current epoch.

    Args:
        max_per_epoch: more of them end the run; None: no limit.
    """

    def __init__(self, max_per_epoch: int | None = None) -> None:
        self.max_per_epoch = max_per_epoch
        self.counts = {"total": 0, "epoch": 0, "in_epoch": 0, "learned": 0}
        self.named: dict[str, str] = {}
        self.num_utterances = 0  # that could not be read on any rank since the process began, once training has ended

    def record(self, batch: Batch) -> None:
        """Print the utterances of a micro-batch of this rank that could not be read, each one once."""
        for cut, reason in batch.skipped:
            if cut not in self.named:
                self.named[cut] = reason
                console.print_line(f"left out {cut}: {reason} ({len(self.named)} so far)")

    def end_update(self, epoch: int, num_unreadable: int, num_read: int) -> None:
        """Count the utterances of an update on all ranks.

        Raises:
            RunFailed: too many of an epoch could not be read.
        """
        if epoch != self.counts["epoch"]:
            self.counts |= {"epoch": epoch, "in_epoch": 0}
        self.counts["total"] += num_unreadable
        self.counts["in_epoch"] += num_unreadable
        self.counts["learned"] |= num_read > 0  # of the whole run, which a resumed part cannot see
        if num_unreadable and self.max_per_epoch is not None and self.counts["in_epoch"] > self.max_per_epoch:
            raise RunFailed(
                f"{self.counts['in_epoch']} utterances of this epoch could not be read, more than "
                f"the {self.max_per_epoch} that data.max_unreadable allows; the first: {self._first()}. Restore their "
                "audio and resume the run, prepare the data again, or raise data.max_unreadable"
            )

    def end_training(self) -> None:
        """Count different utterances on all ranks, and fail a run that has learned from nothing.

        Raises:
            RunFailed: no utterance of the whole run could be read.
        """
        named = {cut for part in gather(self.named) for cut in part}
        # those of before a resumption are counts alone
        self.num_utterances = len(named) or int(self.counts["total"] > 0)
        if self.counts["total"] and not self.counts["learned"]:
            raise RunFailed(f"no utterance could be read, nothing was learned; the first: {self._first()}")

    def _first(self) -> str:
        named = {cut: reason for part in gather(self.named) for cut, reason in part.items()}
        return "; ".join(f"{cut}: {reason}" for cut, reason in list(named.items())[:NUM_NAMED]) or "(named before)"

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {name: int(count) for name, count in self.counts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts."""
        self.counts.update(state)


class SkippedUpdate(Exception):
    """Leaves the optimizer's step after the backward pass, before anything has changed."""


class MicroBatch(NamedTuple):
    """Ids of a micro-batch, losses (B,), and a bool (B,) for too short utterances, for messages."""

    ids: tuple[str, ...]
    losses: Tensor
    too_short: Tensor


class PendingUpdate(NamedTuple):
    """Update whose counts are still on the device.

    Attributes:
        update: its number.
        epoch: its epoch.
        counts: (4,) unreadable, read and too short utterances on all ranks; then 1 if the update is skipped, else 0.
        micro_batches: of this rank.
    """

    update: int
    epoch: int
    counts: Tensor
    micro_batches: list[MicroBatch]


class NonfiniteGuard:
    """Counts and names the updates and utterances that a run skipped.

    Its counts come from sums over all ranks, so every rank counts alike. Each rank names its own utterances.
    """

    def __init__(self) -> None:
        self.counts = {"skipped_updates": 0, "consecutive_skips": 0, "too_short": 0}
        self.micro_batches, self.pending = list[MicroBatch](), list[PendingUpdate]()
        self.named: set[str] = set()  # not in checkpoints: a resumed run names them again

    def record(self, ids: tuple[str, ...], losses: Losses) -> None:
        """Keep a micro-batch until the end of its update."""
        # with a graph they would keep its memory
        self.micro_batches.append(MicroBatch(ids, losses.total.detach(), ~losses.feasible))

    def end_update(self, update: int, epoch: int, counts: Tensor) -> None:
        """Keep an update until the next `sync`.

        Args:
            update: its number.
            epoch: its epoch.
            counts: (4,), see `PendingUpdate`.
        """
        self.pending.append(PendingUpdate(update, epoch, counts, self.micro_batches))
        self.micro_batches = []

    def sync(self, unreadable: UnreadableCuts, rank: int = 0) -> bool:
        """Read the counts of pending updates, name what they skipped; return whether the newest was skipped.

        Args:
            unreadable: receives the counts of unreadable utterances.
            rank: number of this process.

        Raises:
            Diverged: too many updates in a row were not finite.
            RunFailed: too much could not be read.
        """
        pending, self.pending, is_skipped = self.pending, [], False
        # waits for the device
        rows = devices.to_host(torch.stack([update.counts for update in pending])) if pending else []
        for update, (num_unreadable, num_utterances, num_too_short, skips) in zip(pending, rows, strict=True):
            unreadable.end_update(update.epoch, int(num_unreadable), int(num_utterances))
            self._name_too_short(int(num_too_short), update.micro_batches)
            is_skipped = bool(skips)
            if not is_skipped:
                self.counts["consecutive_skips"] = 0
            elif num_utterances:
                self._end_nonfinite_update(update, rank)
            elif self._skips_too_many(update.update, "none of its utterances could be read"):
                raise RunFailed(
                    f"{MAX_CONSECUTIVE_SKIPS} updates in a row were skipped, the last because nothing could be read"
                )
        return is_skipped

    def _name_too_short(self, num: int, micro_batches: Iterable[MicroBatch]) -> None:
        # reading a tensor waits for the device: only if there is something to print
        if not num:
            return
        self.counts["too_short"] += num
        short = {cut for batch in micro_batches for cut, is_short in _pairs(batch.ids, batch.too_short) if is_short}
        for cut in sorted(short - self.named):
            console.print_line(
                f"{cut} is too short for its transcript and is not used: more tokens than frames cannot be aligned (a "
                "speed above 1 shortens a cut). Counted in train/too_short, printed once"
            )
        self.named |= short

    def _end_nonfinite_update(self, pending: PendingUpdate, rank: int) -> None:
        losses = {cut: loss for batch in pending.micro_batches for cut, loss in _pairs(batch.ids, batch.losses)}
        bad = [f"{cut} ({loss})" for cut, loss in losses.items() if not math.isfinite(loss)]
        reason = f"the loss is not finite for {', '.join(bad)}" if bad else "gradients are not finite"
        if self._skips_too_many(pending.update, reason, f"; utterances of rank {rank}: {', '.join(losses)}"):
            raise Diverged(
                f"the loss or the gradients of {MAX_CONSECUTIVE_SKIPS} updates in a row were not finite, the last "
                f"at update {pending.update}; lower optimizer.lr, train with trainer.precision=32-true, or look at the "
                "utterances named above"
            )

    def _skips_too_many(self, update: int, reason: str, utterances: str = "") -> bool:
        """Count and name a skipped update; return whether too many were skipped in a row."""
        self.counts["skipped_updates"] += 1
        self.counts["consecutive_skips"] += 1
        consecutive, total = self.counts["consecutive_skips"], self.counts["skipped_updates"]
        if consecutive <= NUM_NAMED or consecutive % 10 == 0:
            counts = f"({consecutive} consecutive, {total} total)"
            console.print_line(f"skipped update {update}: {reason} {counts}{utterances}")
        return consecutive >= MAX_CONSECUTIVE_SKIPS

    def metrics(self) -> dict[str, float]:
        """Return the numbers of skipped updates and too short utterances since the start of the run."""
        return {f"train/{name}": float(self.counts[name]) for name in ("skipped_updates", "too_short")}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return dict(self.counts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts."""
        self.counts.update(state)


def _pairs(ids: Iterable[str], values: Tensor) -> Iterator[tuple[str, Any]]:
    return zip(ids, devices.to_host(values), strict=True)
