"""Updates that must not happen, and utterances that cannot be learned from: counted and named."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from asr.console import PlainConsole
from asr.data.loading.batch import Batch
from asr.training.checkpoint_checks import count_at
from asr.training.errors import TrainingFailed

MAX_CONSECUTIVE_SKIPS = 50

console = PlainConsole()


class SkippedUpdate(Exception):
    """Unwinds the step of an optimizer behind the backward pass, before anything is changed."""


class UpdateGuard:
    """Decides over every update of a training, and remembers what was left out.

    It is told sums over all ranks, so that every rank decides alike, with the same counts. Each rank names the
    utterances that it has seen itself.

    Args:
        max_consecutive_skips: this many skipped updates in a row end the training.
    """

    def __init__(self, max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS) -> None:
        self.max_consecutive_skips = max_consecutive_skips
        self.counts = {"skipped_updates": 0, "consecutive_skips": 0, "too_short": 0}
        self.seen: list[tuple[tuple[str, ...], Tensor, Tensor]] = []
        self.named: set[str] = set()

    def see(self, batch: Batch, losses: Tensor) -> Tensor:
        """Remember a micro-batch until its update; return which utterances are too short for their transcript.

        CTC gives those a loss of exactly 0, and no gradient.
        """
        too_short = (losses.detach() == 0) & (batch.num_tokens > 0)
        self.seen.append((batch.ids, losses.detach(), too_short))
        return too_short

    def end_update(self, update: int, finite: bool, num_too_short: int, rank: int = 0) -> bool:
        """Count and name what is left out of an update; return whether that is the whole update.

        Args:
            update: its number, as in metrics.csv.
            finite: whether loss and gradients are, on all ranks.
            num_too_short: utterances too short for their transcript, on all ranks.
            rank: of this process.

        Raises:
            TrainingFailed: too many updates in a row were skipped.
        """
        seen, self.seen = self.seen, []
        # reading losses waits for the device: only where there is something to say
        if num_too_short:
            self.counts["too_short"] += num_too_short
            self._name_too_short([cut for ids, _, short in seen for cut in _chosen(ids, short)])
        self.counts["consecutive_skips"] = 0 if finite else self.counts["consecutive_skips"] + 1
        if not finite:
            self.counts["skipped_updates"] += 1
            self._name_skipped(update, seen, rank)
        return not finite

    def end_empty_update(self, update: int) -> None:
        """Count an update of which no utterance could be read, on any rank.

        Raises:
            TrainingFailed: too many updates in a row were skipped.
        """
        self.seen = []
        self.counts["skipped_updates"] += 1
        self.counts["consecutive_skips"] += 1
        in_a_row = self.counts["consecutive_skips"]
        _say(f"update {update} is skipped, {in_a_row} in a row: none of its utterances could be read")
        if in_a_row >= self.max_consecutive_skips:
            raise TrainingFailed(f"{in_a_row} updates in a row were skipped, the last because nothing could be read")

    def _name_too_short(self, cuts: list[str]) -> None:
        for cut in cuts:
            if cut not in self.named:
                self.named.add(cut)
                _say(
                    f"{cut} is too short for its transcript and cannot be learned from: more tokens than frames have "
                    "no alignment (a speed above 1 shortens a cut). Counted in train/too_short, said once"
                )

    def _name_skipped(self, update: int, seen: list[tuple[tuple[str, ...], Tensor, Tensor]], rank: int) -> None:
        losses = {cut: loss for ids, values, _ in seen for cut, loss in zip(ids, values.tolist(), strict=True)}
        bad = [f"{cut} ({loss})" for cut, loss in losses.items() if not math.isfinite(loss)]
        why = f"the loss is not finite for {', '.join(bad)}" if bad else "its losses here are finite, its gradients not"
        _say(
            f"update {update} is skipped, {self.counts['consecutive_skips']} in a row, "
            f"{self.counts['skipped_updates']} in all; {why}; utterances of rank {rank}: {', '.join(losses)}"
        )
        if self.counts["consecutive_skips"] >= self.max_consecutive_skips:
            raise TrainingFailed(
                f"the loss or the gradients of {self.max_consecutive_skips} updates in a row were not finite, the last "
                f"at update {update}; lower optimizer.lr, train with trainer.precision=32-true, or look at the "
                "utterances named above"
            )

    @property
    def has_skipped(self) -> bool:
        """Whether the newest update was left out."""
        return self.counts["consecutive_skips"] > 0

    def metrics(self) -> dict[str, float]:
        """Return what was left out since the training began."""
        return {f"train/{name}": float(self.counts[name]) for name in ("skipped_updates", "too_short")}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return dict(self.counts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.counts.update({name: count_at(state, name) for name in self.counts})


def _chosen(ids: tuple[str, ...], mask: Tensor) -> list[str]:
    return [cut for cut, chosen in zip(ids, mask.tolist(), strict=True) if chosen]


def _say(text: str) -> None:
    console.print(text, soft_wrap=True)
