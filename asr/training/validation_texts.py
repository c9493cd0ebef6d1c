"""The texts of a validation on every rank, and what prevents that a checkpoint is chosen by them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from asr.data.loading.batch import Batch
from asr.errors import RunFailed
from asr.evaluation.wer import Utterance
from asr.training.processes import gather


class ValidationTexts:
    """Collects what this rank has decoded, by development set."""

    def __init__(self) -> None:
        self.utterances: defaultdict[str, list[Utterance]] = defaultdict(list)
        self.num_unread: Counter[str] = Counter()

    def add(self, name: str, batch: Batch, found: Iterable[Utterance]) -> None:
        """Add the texts of a batch of a development set."""
        self.num_unread[name] += len(batch.skipped)
        self.utterances[name].extend(found)

    def of_all_ranks(self, names: Iterable[str]) -> dict[str, list[Utterance]]:
        """Return the texts of each development set.

        Args:
            names: of the development sets.

        Raises:
            RunFailed: no utterance of a development set could be read.
        """
        ranks = gather((dict(self.utterances), self.num_unread))
        found = {name: [one for utterances, _ in ranks for one in utterances.get(name, [])] for name in names}
        for name, utterances in found.items():
            num_unread = sum(unread[name] for _, unread in ranks)
            if num_unread and not utterances:
                raise RunFailed(
                    f"none of the {num_unread} utterances of {name} could be read, so that no checkpoint can be chosen "
                    "by it; put their audio back and resume the run, or prepare the data again"
                )
        return found
