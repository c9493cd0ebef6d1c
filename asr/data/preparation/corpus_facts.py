"""Options that follow from what a corpus is: its hours, its speakers, the rate of its audio."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from asr.data.preparation.saved_corpus import SavedCorpus


@dataclass(frozen=True)
class CorpusFacts:
    """What is known of a training set before any audio is decoded.

    Attributes:
        hours: of its utterances.
        num_utterances: how many.
        num_speakers: different names of speakers; 0: no utterance names its own.
        rate_hz: the highest sampling rate of its audio; None: it has features alone.
        num_features: numbers per frame of features without audio; None: it has audio.
        fast_characters_hz: characters per second, pauses included, of the utterance that nine in ten are slower than.
    """

    hours: float
    num_utterances: int
    num_speakers: int
    rate_hz: int | None
    num_features: int | None
    fast_characters_hz: float

    @classmethod
    def of(cls, corpus: SavedCorpus) -> CorpusFacts:
        """Return the facts of split ``train``."""
        durations_s: list[float] = []
        num_characters: list[int] = []
        rate_hz, num_features, speakers = 0, 0, set()
        for chunk in corpus.chunks("train"):
            for segment in map(json.loads, chunk.segments):
                durations_s.append(segment["duration"])
                num_characters.append(len(segment.get("text") or ""))
                speakers.add(segment.get("speaker"))
            for source in map(json.loads, chunk.sources):
                rate_hz = max(rate_hz, source.get("sampling_rate", 0))
                num_features = max(num_features, source.get("num_features", 0))
        has_audio = corpus.splits["train"].kind == "recordings"
        seconds = np.array(durations_s)
        fast_hz = float(np.quantile(np.array(num_characters) / seconds.clip(1e-3), 0.9))
        size = seconds.sum() / 3600, len(seconds), len(speakers - {None})
        return cls(*size, rate_hz if has_audio else None, None if has_audio else num_features, fast_hz)


@dataclass(frozen=True)
class Choice:
    """A value for an option that the user leaves open.

    Attributes:
        key: of the option, or of a group.
        value: for it; of a group the name of its choice.
        reason: a few words, shown beside it.
    """

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Budget:
    """What a recipe's config says of a run's length.

    Attributes:
        updates: how many.
        batch_s: seconds of audio in the micro-batches of each.
    """

    updates: int
    batch_s: float


Choose = Callable[[CorpusFacts, Budget], Iterable[Choice | str]]
"""Yields choices, and sentences about what no option helps."""
Prepare = TypeVar("Prepare", bound=Callable[..., Any])


def chooses(choose: Choose) -> Callable[[Prepare], Prepare]:
    """Let a prepare function say what options suit its corpus; what the user types wins."""

    def with_choices(prepare: Prepare) -> Prepare:
        prepare.choose = choose  # type: ignore[attr-defined]
        return prepare

    return with_choices
