"""Counts and names updates that are skipped because they are not finite, and utterances that are too short."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.console import console
from asr.errors import Diverged, RunFailed
from asr.models import devices
from asr.models.heads.protocols import Losses
from asr.training.unreadable import UnreadableCuts

MAX_CONSECUTIVE_SKIPS = 50


class SkippedUpdate(Exception):
    """Leaves the optimizer's step after the backward pass, before anything has changed."""


class MicroBatch(NamedTuple):
    """What may have to be named of a micro-batch: utterances, their losses (B,), and which are too short (B,)."""

    ids: tuple[str, ...]
    losses: Tensor
    too_short: Tensor


class MadeUpdate(NamedTuple):
    """An update that the host has not looked at.

    Attributes:
        update: its number.
        epoch: that it belongs to.
        counts: (4,) how many utterances were unreadable, read, and too short, on all ranks; 1 if it is skipped.
        seen: its micro-batches in this process.
    """

    update: int
    epoch: int
    counts: Tensor
    seen: list[MicroBatch]


class NonfiniteGuard:
    """Counts and names what was left out of the updates of a run.

    Its counts come from sums over all ranks, so every rank counts alike. Each rank names its own utterances.

    Args:
        max_consecutive_skips: the run fails after this many skipped updates in a row.
    """

    def __init__(self, max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS) -> None:
        self.max_consecutive_skips = max_consecutive_skips
        self.counts = {"skipped_updates": 0, "consecutive_skips": 0, "too_short": 0}
        self.seen, self.made = list[MicroBatch](), list[MadeUpdate]()
        self.named: set[str] = set()  # not in checkpoints: a resumed run names them again

    def see(self, ids: tuple[str, ...], losses: Losses) -> None:
        """Remember a micro-batch until the end of its update."""
        # with a graph they would keep its memory
        self.seen.append(MicroBatch(ids, losses.total.detach(), ~losses.feasible))

    def end_update(self, update: int, epoch: int, counts: Tensor) -> None:
        """Remember an update until the next look; see `MadeUpdate`."""
        self.made.append(MadeUpdate(update, epoch, counts, self.seen))
        self.seen = []

    def look(self, unreadable: UnreadableCuts, rank: int = 0) -> bool:
        """Count and name what was left out since the last look; return whether the newest update was skipped.

        Args:
            unreadable: counts what could not be read.
            rank: number of this process.

        Raises:
            Diverged: too many updates in a row were not finite.
            RunFailed: too much could not be read.
        """
        made, self.made, is_skipped = self.made, [], False
        # waits for the device
        rows = devices.to_host(torch.stack([one.counts for one in made])) if made else []
        for one, (num_unreadable, num_utterances, num_too_short, skips) in zip(made, rows, strict=True):
            unreadable.end_update(one.epoch, int(num_unreadable), int(num_utterances))
            self._name_too_short(int(num_too_short), one.seen)
            is_skipped = bool(skips)
            if not is_skipped:
                self.counts["consecutive_skips"] = 0
            elif num_utterances:
                self._end_nonfinite_update(one, rank)
            else:
                self._end_empty_update(one.update)
        return is_skipped

    def _name_too_short(self, num: int, seen: Iterable[MicroBatch]) -> None:
        # reading a tensor waits for the device: only if there is something to print
        if not num:
            return
        self.counts["too_short"] += num
        short = {cut for batch in seen for cut, is_short in _pairs(batch.ids, batch.too_short) if is_short}
        for cut in sorted(short - self.named):
            console.print_line(
                f"{cut} is too short for its transcript and cannot be learned from: more tokens than frames have "
                "no alignment (a speed above 1 shortens a cut). Counted in train/too_short, printed once"
            )
        self.named |= short

    def _end_nonfinite_update(self, made: MadeUpdate, rank: int) -> None:
        losses = {cut: loss for batch in made.seen for cut, loss in _pairs(batch.ids, batch.losses)}
        bad = [f"{cut} ({loss})" for cut, loss in losses.items() if not math.isfinite(loss)]
        why = f"the loss is not finite for {', '.join(bad)}" if bad else "its losses here are finite, its gradients not"
        if self._is_last_straw(made.update, f"{why}; utterances of rank {rank}: {', '.join(losses)}"):
            raise Diverged(
                f"the loss or the gradients of {self.max_consecutive_skips} updates in a row were not finite, the last "
                f"at update {made.update}; lower optimizer.lr, train with trainer.precision=32-true, or look at the "
                "utterances named above"
            )

    def _end_empty_update(self, update: int) -> None:
        """Count an update without a single readable utterance on any rank."""
        if self._is_last_straw(update, "none of its utterances could be read"):
            raise RunFailed(
                f"{self.max_consecutive_skips} updates in a row were skipped, the last because nothing could be read"
            )

    def _is_last_straw(self, update: int, why: str) -> bool:
        """Count and name a skipped update; return whether there are too many in a row."""
        self.counts["skipped_updates"] += 1
        self.counts["consecutive_skips"] += 1
        in_a_row, num = self.counts["consecutive_skips"], self.counts["skipped_updates"]
        console.print_line(f"update {update} is skipped, {in_a_row} in a row, {num} in all; {why}")
        return in_a_row >= self.max_consecutive_skips

    def metrics(self) -> dict[str, float]:
        """Return what was left out since the start of the run."""
        return {f"train/{name}": float(self.counts[name]) for name in ("skipped_updates", "too_short")}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return dict(self.counts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts."""
        self.counts.update(state)


def _pairs(ids: Iterable[str], values: Tensor) -> Iterator[tuple[str, Any]]:
    return zip(ids, devices.to_host(values), strict=True)
