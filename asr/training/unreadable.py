"""Names and counts utterances that cannot be read during training; too many of them end the run."""

from __future__ import annotations

from typing import Any

from asr.console import console
from asr.data.loading.batch import Batch
from asr.errors import RunFailed
from asr.training.processes import gather

NUM_NAMED = 5


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
