"""Utterances that cannot be read while a model trains: named, counted, and too many of them end the run."""

from __future__ import annotations

from typing import Any

from asr.console import PlainConsole
from asr.data.loading.batch import Batch
from asr.training.checkpoint_checks import count_at
from asr.training.errors import TrainingFailed
from asr.training.processes import gather

NUM_NAMED = 5

console = PlainConsole()


def max_unreadable(share: object, num_cuts: int) -> int:
    """Return how many utterances of an epoch may be unreadable; one always may.

    Args:
        share: ``data.max_unreadable``.
        num_cuts: of an epoch.

    Raises:
        ValueError: the share is not in [0, 1].
    """
    return max(1, int(check_share(share) * num_cuts))


def check_share(share: object) -> float:
    """Return ``data.max_unreadable`` if it is a share.

    Raises:
        ValueError: it is not in [0, 1].
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(
            f"data.max_unreadable must be in [0, 1], the share of an epoch's utterances that may be unreadable, given "
            f"{share!r}"
        )
    return float(share)


class UnreadableCuts:
    """Counts what could not be read over all ranks, since the run began and in its epoch.

    Args:
        max_per_epoch: more end the run; None: no limit.
    """

    def __init__(self, max_per_epoch: int | None = None) -> None:
        self.max_per_epoch = max_per_epoch
        self.counts = {"total": 0, "epoch": 0, "in_epoch": 0, "learned": 0}
        self.named: dict[str, str] = {}

    def see(self, batch: Batch) -> None:
        """Name the utterances of a micro-batch of this rank that could not be read, each once."""
        for cut, reason in batch.skipped:
            if cut not in self.named:
                self.named[cut] = reason
                console.print(f"left out {cut}: {reason} ({len(self.named)} so far)", soft_wrap=True)

    def end_update(self, epoch: int, num_unreadable: int, num_read: int) -> None:
        """Count the utterances of an update on all ranks.

        Raises:
            TrainingFailed: too many of an epoch could not be read.
        """
        if epoch != self.counts["epoch"]:
            self.counts |= {"epoch": epoch, "in_epoch": 0}
        self.counts["total"] += num_unreadable
        self.counts["in_epoch"] += num_unreadable
        self.counts["learned"] |= num_read > 0
        if num_unreadable and self.max_per_epoch is not None and self.counts["in_epoch"] > self.max_per_epoch:
            raise TrainingFailed(
                f"{self.counts['in_epoch']} utterances of this epoch could not be read, more than the "
                f"{self.max_per_epoch} that data.max_unreadable allows; the first: {self._first()}. Put their audio "
                "back and resume the run, prepare the data again, or raise data.max_unreadable"
            )

    def end_training(self) -> None:
        """Refuse to call a training finished that has learned from nothing.

        Raises:
            TrainingFailed: no utterance of the whole run could be read.
        """
        if self.counts["total"] and not self.counts["learned"]:
            raise TrainingFailed(f"no utterance could be read, nothing was learned; the first: {self._first()}")

    def _first(self) -> str:
        named = {cut: reason for part in gather(self.named) for cut, reason in part.items()}
        return "; ".join(f"{cut}: {reason}" for cut, reason in list(named.items())[:NUM_NAMED]) or "(named before)"

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {name: int(count) for name, count in self.counts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue to count."""
        self.counts.update({name: count_at(state, name) for name in self.counts})
