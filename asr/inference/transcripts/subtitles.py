"""Subtitles: SubRip (``.srt``) and WebVTT (``.vtt``)."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asr.inference.transcripts.transcript import Segment, Transcript
from asr.text.words import Word

# usual limits of subtitles: two lines that can be read in their time
LINE, NUM_LINES = 42, 2  # characters
LONGEST_S, PAUSE_S = 7.0, 0.8
SHORTEST_S = 0.2


@dataclass(frozen=True)
class Cue:
    """A text that is shown from one time to another, in seconds."""

    start_s: float
    end_s: float
    text: str


def cues_of(transcript: Transcript) -> list[Cue]:
    """Return what is shown when: lines end in pauses, or where they would become too long to read.

    A segment whose words have no times is shown as a whole.
    """
    found = sorted((cue for segment in transcript.segments for cue in _cues(segment)), key=lambda cue: cue.start_s)
    starts = [*(cue.start_s for cue in found), float("inf")][1:]
    # a cue without length would never be shown, and two at a time would hide each other
    return [
        Cue(cue.start_s, max(cue.start_s + 0.001, min(max(cue.end_s, cue.start_s + SHORTEST_S), following)), cue.text)
        for cue, following in zip(found, starts, strict=True)
    ]


def _cues(segment: Segment) -> Iterator[Cue]:
    if not segment.words:
        yield Cue(segment.start_s, segment.end_s, textwrap.fill(segment.text, LINE))
        return
    shown: list[Word] = []
    for word in segment.words:
        if shown and not _fits(shown, word):
            yield _cue(shown)
            shown = []
        shown.append(word)
    yield _cue(shown)


def _fits(shown: Sequence[Word], word: Word) -> bool:
    text = " ".join([*(one.text for one in shown), word.text])
    lasts_s = word.end_s - shown[0].start_s
    return len(_lines(text)) <= NUM_LINES and lasts_s <= LONGEST_S and word.start_s - shown[-1].end_s <= PAUSE_S


def _cue(words: Sequence[Word]) -> Cue:
    return Cue(words[0].start_s, words[-1].end_s, "\n".join(_lines(" ".join(word.text for word in words))))


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, LINE, break_long_words=False, break_on_hyphens=False)


def srt(transcript: Transcript) -> str:
    """Return subtitles in the format of SubRip."""
    cues = enumerate(cues_of(transcript), 1)
    return "\n".join(
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{cue.text}\n" for number, cue in cues
    )


def vtt(transcript: Transcript) -> str:
    """Return subtitles as WebVTT."""
    shown = (
        f"\n{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{html.escape(cue.text, quote=False)}\n"
        for cue in cues_of(transcript)
    )
    return "".join(["WEBVTT\n", *shown])


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
