"""What a comparison needs to know of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr.evaluation.wer import Unit

MAX_SETS = 100  # test sets, each with plots and tables of its own


@dataclass(frozen=True)
class SetErrors:
    """Word errors of a run on one test set; the first four fields have one entry per utterance, ordered by id.

    Attributes:
        ids: utterance ids.
        speakers: None for an unknown speaker.
        words: number of words in the reference.
        errors: substitutions, deletions and insertions together.
        references: digest of the reference texts; None: the run, an older one, has not recorded it.
        text: options that the references were normalized with, as ``key=value``.
    """

    ids: tuple[str, ...]
    speakers: tuple[str | None, ...]
    words: tuple[int, ...]
    errors: tuple[int, ...]
    references: str | None = None
    text: tuple[str, ...] = ()

    @property
    def wer(self) -> float:
        """Word error rate, a fraction."""
        return sum(self.errors) / sum(self.words)


@dataclass(frozen=True)
class Curve:
    """A metric over training; every field has one entry per point.

    Attributes:
        updates: updates done.
        seconds: training time so far; empty if the run did not log it.
        values: of the metric.
    """

    updates: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """Time and memory of a run; None if the run did not measure it.

    Attributes:
        num_updates: updates done.
        num_parameters: of the recognizer.
        seconds: wall time of training, before and after interruptions.
        cpu_seconds: CPU time of training; unknown if the run was interrupted.
        seconds_per_update: mean wall time of an update.
        optimizer_step_seconds: mean time of a step of the optimizer, of all steps.
        optimizer_step_sd: their standard deviation.
        optimizer_share: the optimizer step's share of an update, 0 to 1.
        optimizer_state_bytes: of all tensors in the optimizer state.
        peak_memory_mb: largest resident memory, or on a GPU the largest allocation.
    """

    num_updates: int
    num_parameters: int
    seconds: float | None = None
    cpu_seconds: float | None = None
    seconds_per_update: float | None = None
    optimizer_step_seconds: float | None = None
    optimizer_step_sd: float | None = None
    optimizer_share: float | None = None
    optimizer_state_bytes: int | None = None
    peak_memory_mb: float | None = None


@dataclass(frozen=True)
class Run:
    """One training run with one seed.

    Attributes:
        folder: of the run.
        system: name of what is compared, for example ``optimizer=eve``; runs that differ only in their seed share it.
        seed: of the run.
        lr: learning rate of the optimizer; None if it has none.
        sets: errors by name of the test set.
        curves: by name of the metric, for example ``train/loss``, ``val/wer``; error rates count in ``unit``.
        cost: of training.
        study: number of the tuning study that chose its settings; None if none has.
        target_wer: on the development sets, a fraction, that its sweep was to reach; None if it named none.
        wers_by_weights: WER by test set, by what was decoded, such as ``best`` and ``last``; empty if only one was.
        unit: what its error rates count; each counts as a word.
    """

    folder: Path
    system: str
    seed: int
    lr: float | None
    sets: Mapping[str, SetErrors]
    curves: Mapping[str, Curve]
    cost: Cost
    study: float | None = None
    target_wer: float | None = None
    wers_by_weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unit: Unit = "word"


@dataclass(frozen=True)
class StartedRun:
    """What a run's folder says of its start."""

    folder: Path
    typed: list[str]
    config: dict[str, Any]
    seed: int
    unit: Unit


@dataclass(frozen=True)
class FinishedRun(StartedRun):
    """The contents of the folder of a finished run."""

    summary: dict[str, Any]
    sets: dict[str, SetErrors]
    curves: dict[str, Curve]
    problems: list[str]
