"""What was said in a recording, with its times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from asr.evaluation.wer import Utterance, Word


@dataclass(frozen=True)
class Segment:
    """A part of a channel of a recording that was decoded by itself.

    Attributes:
        channel: from 1.
        start_s: seconds from the start of the recording.
        end_s: likewise.
        text: not empty.
        words: with seconds from the start of the recording; empty if their times are not known.
    """

    channel: int
    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...]

    @classmethod
    def of(cls, utterance: Utterance, channel: int, start_s: float, end_s: float) -> Segment:
        """Return the hypothesis of a part, moved to its place."""
        words = tuple(
            replace(word, start_s=round(word.start_s + start_s, 3), end_s=round(word.end_s + start_s, 3))
            for word in utterance.words
        )
        return cls(channel, start_s, end_s, utterance.hypothesis, words)


@dataclass(frozen=True)
class Transcript:
    """The segments of a recording.

    Attributes:
        path: of the recording.
        segments: in the order of their starts.
    """

    path: Path
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, path: Path, segments: Iterable[Segment]) -> Transcript:
        """Return a transcript of segments in any order."""
        return cls(path, tuple(sorted(segments, key=lambda segment: (segment.start_s, segment.channel))))

    @property
    def text(self) -> str:
        """All that was said."""
        return " ".join(segment.text for segment in self.segments)

    @cached_property
    def has_several_channels(self) -> bool:
        """Whether it must be said which channel a segment comes from."""
        return any(segment.channel > 1 for segment in self.segments)

    def label(self, segment: Segment) -> str:
        """Return what stands before the text of a segment where people read it: its channel, if there are several."""
        return f"{segment.channel}: " if self.has_several_channels else ""
