"""What was said in a recording, with its times, and the formats that it is written in."""

from __future__ import annotations

import html
import json
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from asr.evaluation.wer import Utterance, Word
from asr.evaluation.word_files import ctm_lines, word_row

# usual limits of subtitles: two lines that can be read in their time
LINE, NUM_LINES = 42, 2  # characters
LONGEST_S, PAUSE_S = 7.0, 0.8
SHORTEST_S = 0.2
STOPS = ".,;:!?…。，、；：！？"
# scripts that write no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


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
        silence: share of the recording that was taken for silence, and not decoded.
    """

    path: Path
    segments: tuple[Segment, ...]
    silence: float = 0.0

    @classmethod
    def of(cls, path: Path, segments: Iterable[Segment], silence: float = 0.0) -> Transcript:
        """Return a transcript of segments in any order."""
        return cls(path, tuple(sorted(segments, key=lambda segment: (segment.start_s, segment.channel))), silence)

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


@dataclass(frozen=True)
class Cue:
    """A text that is shown from one time to another, in seconds."""

    channel: int
    start_s: float
    end_s: float
    text: str


def cues_of(transcript: Transcript) -> list[Cue]:
    """Return what is shown when: lines end in pauses, or where they would become too long to read, best after a stop.

    A segment whose words have no times is shown as a whole. Cues of a channel follow each other; those of several may
    be shown at a time, one below the other, and each begins with its channel.
    """
    cues = [cue for segment in transcript.segments for cue in _cues(segment, transcript.label(segment))]
    ordered = [cue for channel in {cue.channel for cue in cues} for cue in _in_turn(cues, channel)]
    return sorted(ordered, key=lambda cue: (cue.start_s, cue.channel))


def _in_turn(cues: Sequence[Cue], channel: int) -> Iterator[Cue]:
    """Yield the cues of a channel, each of which ends before the next begins."""
    turns = sorted((cue for cue in cues if cue.channel == channel), key=lambda cue: cue.start_s)
    starts = [*(cue.start_s for cue in turns), float("inf")][1:]
    for cue, following in zip(turns, starts, strict=True):
        end_s = min(max(cue.end_s, cue.start_s + SHORTEST_S), following)
        # without length it would never be shown
        yield replace(cue, end_s=max(cue.start_s + 0.001, end_s))


def _cues(segment: Segment, label: str) -> Iterator[Cue]:
    shown: list[list[Word]] = [[]]
    for piece in _pieces(segment):
        if not _fits(label, [*shown[-1], piece]):
            # what follows a stop in the second half of a full cue goes to the next one
            places = range(len(shown[-1]), len(shown[-1]) // 2, -1)
            fitting = (n for n in places if _fits(label, [*shown[-1][n:], piece]))
            stop = next((n for n in fitting if shown[-1][n - 1].text[-1] in STOPS), len(shown[-1]))
            shown[-1:] = [shown[-1][:stop], shown[-1][stop:]]
        shown[-1].append(piece)
    for pieces in shown if shown[0] else ():
        end_s = min(pieces[-1].end_s, pieces[0].start_s + LONGEST_S)
        yield Cue(segment.channel, pieces[0].start_s, end_s, "\n".join(_lines(label, pieces)))
    if not shown[0]:
        yield Cue(segment.channel, segment.start_s, segment.end_s, textwrap.fill(f"{label}{segment.text}", LINE))


def _pieces(segment: Segment) -> list[Word]:
    """Return what no line divides, with the spaces before it: words, or characters where there are no spaces."""
    pieces: list[Word] = []
    place = 0
    for word in segment.words:
        begin = segment.text.find(word.text, place)
        gap, place = "" if begin == place else " ", max(place, begin + len(word.text))
        times_s = np.linspace(word.start_s, word.end_s, len(word.text) + 1).tolist()
        for character, (start_s, end_s) in zip(word.text, pairwise(times_s), strict=True):
            if pieces and not gap and _belong(pieces[-1].text, character):
                pieces[-1] = replace(pieces[-1], text=pieces[-1].text + character, end_s=end_s)
            else:
                pieces.append(Word(gap + character, start_s, end_s, word.confidence))
            gap = ""
    return pieces


def _belong(text: str, character: str) -> bool:
    """Return whether a line never ends between a text and the next character."""
    before, after = unicodedata.category(text[-1]), unicodedata.category(character)
    is_mark = before in ("Ps", "Pi") or after in ("Pe", "Pf", "Po", "Mn", "Mc")
    return len(text.strip()) < LINE and (is_mark or not (UNSPACED.match(text[-1]) or UNSPACED.match(character)))


def _fits(label: str, pieces: Sequence[Word]) -> bool:
    if len(pieces) < 2:
        return True
    lasts_s, pause_s = pieces[-1].end_s - pieces[0].start_s, pieces[-1].start_s - pieces[-2].end_s
    return len(_lines(label, pieces)) <= NUM_LINES and lasts_s <= LONGEST_S and pause_s <= PAUSE_S


def _lines(label: str, pieces: Sequence[Word]) -> list[str]:
    lines = [label.strip()]
    for number, piece in enumerate(pieces):
        line = (lines[-1] + (piece.text if number else f" {piece.text.strip()}")).strip()
        if lines[-1] and len(line) > LINE:
            lines.append(piece.text.strip())
        else:
            lines[-1] = line
    return lines


def _srt(transcript: Transcript) -> str:
    return "\n".join(
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{cue.text}\n"
        for number, cue in enumerate(cues_of(transcript), 1)
    )


def _vtt(transcript: Transcript) -> str:
    return "WEBVTT\n" + "".join(
        f"\n{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{html.escape(cue.text, quote=False)}\n"
        for cue in cues_of(transcript)
    )


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _json(transcript: Transcript) -> str:
    """Return a line of JSON: all words with their times, and the segments that they are in."""
    words = [word_row(word, channel=segment.channel) for segment in transcript.segments for word in segment.words]
    segments = [
        {"channel": segment.channel, "start": segment.start_s, "end": segment.end_s, "text": segment.text}
        for segment in transcript.segments
    ]
    whole = {"id": str(transcript.path), "text": transcript.text, "words": words, "segments": segments}
    return json.dumps(whole, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "tsv": lambda whole: f"{whole.path}\t{whole.text}\n",
    "txt": lambda whole: "".join(f"{whole.label(segment)}{segment.text}\n" for segment in whole.segments),
    "json": _json,
    "ctm": lambda whole: "".join(
        ctm_lines(str(whole.path), segment.words, segment.channel) for segment in whole.segments
    ),
    "srt": _srt,
    "vtt": _vtt,
}
OF_SEVERAL = ("tsv", "json", "ctm")  # a file may hold several recordings
