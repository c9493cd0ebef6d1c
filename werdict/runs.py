"""What a comparison needs to know of its runs, whatever toolkit they come from.

A reader of another toolkit's files returns ``Inputs``, as ``run_folders.read_runs`` does for this one. A ``Run`` needs
a folder, a system, a seed, and errors per utterance; all else is optional: what it would show is left out, or a dash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from rapidfuzz.distance import Editops, Levenshtein

from werdict.files import read_json
from werdict.scoring import Unit, words_of


@dataclass(frozen=True)
class Texts:
    """What was said and recognized on a test set, as it was scored; one entry per utterance, ordered by id.

    Attributes:
        unit: what counts as a word of a text.
    """

    references: tuple[str, ...]
    hypotheses: tuple[str, ...]
    unit: Unit = "word"

    @cached_property
    def edits(self) -> tuple[Editops, ...]:
        """The fewest edits that turn each reference into its hypothesis, in words."""
        none = cache(lambda num: Editops([], num, num))  # most texts are right, and need no list of their own
        return tuple(
            none(len(self.words(reference)))
            if reference == recognized
            else Levenshtein.editops(self.words(reference), self.words(recognized))
            for reference, recognized in zip(self.references, self.hypotheses, strict=True)
        )

    def words(self, text: str) -> list[str]:
        """Return what counts as the words of a text."""
        return words_of(text, self.unit)


@dataclass(frozen=True)
class SetErrors:
    """Errors of a run on one test set; the first four fields have one entry per utterance, ordered by id.

    Attributes:
        speakers: None for an unknown speaker.
        words: number of words in the reference; at least one in the set.
        errors: substitutions, deletions and insertions together.
        references: digest of the reference texts, which tells whether runs were scored against the same ones.
        depends_on_audio: whether the hypotheses do, see ``werdict.error_files``; None if that is not known.
        texts: None if only the numbers of errors are known.
        seen_speakers: whether training data have speakers of the set.
    """

    ids: tuple[str, ...]
    speakers: tuple[str | None, ...]
    words: tuple[int, ...]
    errors: tuple[int, ...]
    references: str | None = None
    depends_on_audio: bool | None = None
    texts: Texts | None = None
    seen_speakers: bool = False

    def at(self, places: Sequence[int]) -> SetErrors:
        """Return the utterances at these places alone."""
        return SetErrors(
            ids=tuple(self.ids[place] for place in places),
            speakers=tuple(self.speakers[place] for place in places),
            words=tuple(self.words[place] for place in places),
            errors=tuple(self.errors[place] for place in places),
            depends_on_audio=self.depends_on_audio,
            seen_speakers=self.seen_speakers,
        )

    @property
    def wer(self) -> float:
        """Word error rate, a fraction."""
        return sum(self.errors) / sum(self.words)

    @property
    def has_learned(self) -> bool:
        """Whether hypotheses depend on the audio; if that is not known, whether the WER is below 100 %."""
        return self.wer < 1 if self.depends_on_audio is None else self.depends_on_audio


@dataclass(frozen=True)
class Curve:
    """A metric over training; every field has one entry per point.

    Attributes:
        updates: updates done.
        seconds: training time so far; empty if the run did not log it.
    """

    updates: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """Time and memory of a run; None if the run did not measure it.

    Attributes:
        num_updates: the budget of training.
        num_passes: forward passes, each with its backward pass, of all micro-batches.
        seconds: wall time of training, before and after interruptions.
        cpu_seconds: CPU time of training; unknown if the run was interrupted.
        seconds_per_update: mean wall time.
        optimizer_step_seconds: mean time of a step of the optimizer.
        optimizer_step_sd: standard deviation of these times.
        optimizer_share: the optimizer step's share of an update, 0 to 1.
        optimizer_state_bytes: of all tensors in the optimizer state.
        peak_memory_mb: largest resident memory, or on a GPU the largest allocation.
    """

    num_updates: int | None = None
    num_passes: int | None = None
    num_parameters: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    seconds_per_update: float | None = None
    optimizer_step_seconds: float | None = None
    optimizer_step_sd: float | None = None
    optimizer_share: float | None = None
    optimizer_state_bytes: int | None = None
    peak_memory_mb: float | None = None

    @property
    def state_bytes_per_parameter(self) -> float | None:
        """Memory of the optimizer."""
        if self.optimizer_state_bytes is None or not self.num_parameters:
            return None
        return self.optimizer_state_bytes / self.num_parameters


@dataclass(frozen=True)
class Run:
    """One training run with one seed.

    Attributes:
        folder: names the run in messages.
        system: name of what is compared, for example ``optimizer=eve``; runs that differ only in their seed share it.
        sets: errors by name of the test set.
        lr: learning rate; None if there is none.
        curves: by name of the metric, such as ``train/loss`` and ``val/wer``, whose error rates count in ``unit``.
        study: number of the tuning study that chose its settings; None if none has.
        target_wer: on the development sets, a fraction, that its sweep was to reach.
        wers_by_weights: WER by test set, by what was decoded, such as ``best`` and ``last``; empty if only one was.
        unit: what its error rates count; each counts as a word.
        has_failed: whether it has ended by itself without any result.
    """

    folder: Path
    system: str
    seed: int
    sets: Mapping[str, SetErrors]
    lr: float | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    study: int | None = None
    target_wer: float | None = None
    wers_by_weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unit: Unit = "word"
    has_failed: bool = False


@dataclass(frozen=True)
class Inputs:
    """What a reader has found.

    Attributes:
        runs: that can be compared; all are scored in one unit.
        problems: messages on what cannot be compared.
        notes: that must be shown with the results, for example "synthetic speech".
        failed: system and seed of runs that failed by themselves.
        has_seeds: False for single runs of which no seed is known; they are compared over speakers alone.
        labels: by test set and column, the value of each utterance, ordered by id; a set is compared on each value too.
    """

    runs: Sequence[Run]
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    failed: Sequence[tuple[str, int]] = ()
    has_seeds: bool = True
    labels: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


FILE = "tuning.json"
LR = "optimizer.lr"


@dataclass(frozen=True)
class Tuning:
    """What one study tried for one system.

    Attributes:
        system: its name in the comparison.
        trials: learning rate and WER on the development sets; a WER is infinite if the trial gave none.
        chosen: learning rate of the best trial.
        at_edge: whether the smallest or the largest rate was the best, or as good.
    """

    system: str
    trials: tuple[tuple[float, float], ...]
    chosen: float
    at_edge: bool


def read_tuning(folder: Path) -> list[Tuning]:
    """Return what the studies of a sweep tried; empty if it has not tuned."""
    path = folder / FILE
    return [
        Tuning(
            name,
            tuple(
                (trial["settings"][LR], math.inf if trial["wer"] is None else trial["wer"]) for trial in tuned["trials"]
            ),
            tuned["chosen"][LR],
            tuned["at_edge"],
        )
        for study in (read_json(path) if path.exists() else [])
        for name, tuned in study.items()
    ]
