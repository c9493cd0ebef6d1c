"""Skips updates that are not finite, and counts and names what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from asr import devices
from asr.console import console
from asr.errors import Diverged, RunFailed

MAX_CONSECUTIVE_SKIPS = 50


MicroBatch = tuple[tuple[str, ...], Tensor, Tensor]  # names, losses (B,), which are too short (B,)


class SkippedUpdate(Exception):
    """Leaves the optimizer's step after the backward pass, before anything has changed."""


class NonfiniteGuard:
    """Counts and names what was left out of the updates of a run.

    Its counts come from sums over all ranks, so every rank decides alike. Each rank names its own utterances.

    Args:
        max_consecutive_skips: the run fails after this many skipped updates in a row.
    """

    def __init__(self, max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS) -> None:
        self.max_consecutive_skips = max_consecutive_skips
        self.counts = {"skipped_updates": 0, "consecutive_skips": 0, "too_short": 0}
        self.named: set[str] = set()  # not in checkpoints: a resumed run names them again

    def end_update(
        self, update: int, finite: bool, num_too_short: int, seen: Sequence[MicroBatch], rank: int = 0
    ) -> None:
        """Count and name what is left out of an update.

        Args:
            update: its number, as in metrics.csv.
            finite: whether loss and gradients are finite, on all ranks.
            num_too_short: utterances too short for their transcript, on all ranks.
            seen: its micro-batches in this process.
            rank: number of this process.

        Raises:
            Diverged: too many updates in a row were skipped.
        """
        # reading a tensor waits for the device: only if there is something to print
        if num_too_short:
            self.counts["too_short"] += num_too_short
            short = {cut for ids, _, mask in seen for cut, is_short in _pairs(ids, mask) if is_short}
            for cut in sorted(short - self.named):
                console.print_line(
                    f"{cut} is too short for its transcript and cannot be learned from: more tokens than frames have "
                    "no alignment (a speed above 1 shortens a cut). Counted in train/too_short, printed once"
                )
            self.named |= short
        if finite:
            self.counts["consecutive_skips"] = 0
            return
        losses = {cut: loss for ids, values, _ in seen for cut, loss in _pairs(ids, values)}
        bad = [f"{cut} ({loss})" for cut, loss in losses.items() if not math.isfinite(loss)]
        why = f"the loss is not finite for {', '.join(bad)}" if bad else "its losses here are finite, its gradients not"
        if self._is_last_straw(update, f"{why}; utterances of rank {rank}: {', '.join(losses)}"):
            raise Diverged(
                f"the loss or the gradients of {self.max_consecutive_skips} updates in a row were not finite, the last "
                f"at update {update}; lower optimizer.lr, train with trainer.precision=32-true, or look at the "
                "utterances named above"
            )

    def end_empty_update(self, update: int) -> None:
        """Count an update without a single readable utterance on any rank.

        Raises:
            RunFailed: too many updates in a row were skipped.
        """
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
