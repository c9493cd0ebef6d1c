"""Subtitles: SubRip (``.srt``) and WebVTT (``.vtt``)."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from asr.evaluation.wer import Word
from asr.inference.transcripts.transcript import Segment, Transcript

# usual limits of subtitles: two lines that can be read in their time
LINE, NUM_LINES = 42, 2  # characters
LONGEST_S, PAUSE_S = 7.0, 0.8
SHORTEST_S = 0.2


@dataclass(frozen=True)
class Cue:
    """A text that is shown from one time to another, in seconds."""

    channel: int
    start_s: float
    end_s: float
    text: str


def cues_of(transcript: Transcript) -> list[Cue]:
    """Return what is shown when: lines end in pauses, or where they would become too long to read.

    A segment whose words have no times is shown as a whole. Cues of a channel follow each other; those of several may
    be shown at a time, one below the other, and each begins with its channel.
    """
    cues = [cue for segment in transcript.segments for cue in _cues(segment, transcript.label(segment))]
    found = [cue for channel in {cue.channel for cue in cues} for cue in _in_turn(cues, channel)]
    return sorted(found, key=lambda cue: (cue.start_s, cue.channel))


def _in_turn(cues: Sequence[Cue], channel: int) -> Iterator[Cue]:
    """Yield the cues of a channel, each of which ends before the next begins."""
    own = sorted((cue for cue in cues if cue.channel == channel), key=lambda cue: cue.start_s)
    starts = [*(cue.start_s for cue in own), float("inf")][1:]
    for cue, following in zip(own, starts, strict=True):
        end_s = min(max(cue.end_s, cue.start_s + SHORTEST_S), following)
        # without length it would never be shown
        yield replace(cue, end_s=max(cue.start_s + 0.001, end_s))


def _cues(segment: Segment, label: str) -> Iterator[Cue]:
    if not segment.words:
        yield Cue(segment.channel, segment.start_s, segment.end_s, textwrap.fill(f"{label}{segment.text}", LINE))
        return
    shown: list[Word] = []
    for word in segment.words:
        if shown and not _fits(label, [*shown, word]):
            yield _cue(segment.channel, label, shown)
            shown = []
        shown.append(word)
    yield _cue(segment.channel, label, shown)


def _fits(label: str, words: Sequence[Word]) -> bool:
    lasts_s, pause_s = words[-1].end_s - words[0].start_s, words[-1].start_s - words[-2].end_s
    return len(_lines(label, words)) <= NUM_LINES and lasts_s <= LONGEST_S and pause_s <= PAUSE_S


def _cue(channel: int, label: str, words: Sequence[Word]) -> Cue:
    return Cue(channel, words[0].start_s, words[-1].end_s, "\n".join(_lines(label, words)))


def _lines(label: str, words: Sequence[Word]) -> list[str]:
    text = label + " ".join(word.text for word in words)
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
