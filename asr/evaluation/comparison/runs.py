"""What a comparison needs to know of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SetErrors:
    """Word errors of a run on one test set; all fields have one entry per utterance, ordered by id.

    Attributes:
        ids: of the utterances.
        speakers: who spoke; None where that is unknown.
        words: number of words in the reference.
        errors: substitutions, deletions and insertions together.
    """

    ids: tuple[str, ...]
    speakers: tuple[str | None, ...]
    words: tuple[int, ...]
    errors: tuple[int, ...]

    @property
    def wer(self) -> float:
        """Word error rate, a fraction."""
        return sum(self.errors) / sum(self.words)


@dataclass(frozen=True)
class Curve:
    """A number over the course of a training; all fields have one entry per point.

    Attributes:
        updates: updates done.
        seconds: of training done; empty where the run did not log them.
        values: the number.
    """

    updates: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """What a training took; None where the run did not measure it.

    Attributes:
        num_updates: updates done.
        num_parameters: of the recogniser.
        seconds: wall time of the training, over all interruptions.
        cpu_seconds: CPU time of the same; unknown where there were interruptions.
        seconds_per_update: median wall time of an update.
        optimizer_share: share of the update that the optimizer's step takes, 0 to 1.
        optimizer_state_bytes: of all tensors that the optimizer keeps.
        peak_memory_mb: largest resident memory, or on a GPU the largest allocation.
    """

    num_updates: int
    num_parameters: int
    seconds: float | None = None
    cpu_seconds: float | None = None
    seconds_per_update: float | None = None
    optimizer_share: float | None = None
    optimizer_state_bytes: int | None = None
    peak_memory_mb: float | None = None


@dataclass(frozen=True)
class Run:
    """One training with one seed.

    Attributes:
        folder: of the run.
        contestant: what is compared, for example ``optimizer=eve``; runs that differ in the seed alone share it.
        seed: of the run.
        lr: the optimizer's learning rate; None where it has none.
        sets: errors by the name of the test set.
        curves: ``train/loss``, ``val/wer`` … by name.
        cost: of the training.
    """

    folder: Path
    contestant: str
    seed: int
    lr: float | None
    sets: Mapping[str, SetErrors]
    curves: Mapping[str, Curve]
    cost: Cost
