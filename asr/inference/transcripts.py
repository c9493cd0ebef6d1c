"""Recordings → transcripts, in every output format, one by one or for a folder."""

from __future__ import annotations

import contextlib
import html
import json
import re
import tempfile
import textwrap
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from asr.data.loading.loader import LoaderFactory
from asr.data.manifests.audio import file_content
from asr.data.manifests.audio_files import audio_files
from asr.decoding.greedy import Decoder
from asr.inference.decode import Processed, decode_all
from asr.models.recognizer import Recognizer
from werdict.error_files import ctm_lines, word_row
from werdict.errors import ConfigError
from werdict.files import write_new
from werdict.scoring import Utterance, Word

# usual limits of subtitles: two lines that can be read in their time
LINE, NUM_LINES = 42, 2  # characters
LONGEST_S, PAUSE_S = 7.0, 0.8
SHORTEST_S = 0.2
RECORD = ".asr-transcribe.jsonl"  # in a folder of transcripts
STOPS = ".,;:!?…。，、；：！？"
# scripts that write no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class Segment:
    """A part of a channel of a recording that was decoded by itself, or whose text is shown at a time.

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
    words: tuple[Word, ...] = ()

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


def cues_of(transcript: Transcript) -> list[Segment]:
    """Return what is shown when: lines end in pauses, or where they would become too long to read, best after a stop.

    A segment whose words have no times is shown as a whole. Cues of a channel follow each other; those of several may
    be shown at a time, one below the other, and each begins with its channel.
    """
    cues = [cue for segment in transcript.segments for cue in _cues(segment, transcript.label(segment))]
    ordered = [cue for channel in {cue.channel for cue in cues} for cue in _in_turn(cues, channel)]
    return sorted(ordered, key=lambda cue: (cue.start_s, cue.channel))


def _in_turn(cues: Sequence[Segment], channel: int) -> Iterator[Segment]:
    """Yield the cues of a channel, each of which ends before the next begins."""
    turns = sorted((cue for cue in cues if cue.channel == channel), key=lambda cue: cue.start_s)
    starts = [*(cue.start_s for cue in turns), float("inf")][1:]
    for cue, following in zip(turns, starts, strict=True):
        end_s = min(max(cue.end_s, cue.start_s + SHORTEST_S), following)
        # without length it would never be shown
        yield replace(cue, end_s=max(cue.start_s + 0.001, end_s))


def _cues(segment: Segment, label: str) -> Iterator[Segment]:
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
        yield Segment(segment.channel, pieces[0].start_s, end_s, "\n".join(_lines(label, pieces)))
    if not shown[0]:
        yield Segment(segment.channel, segment.start_s, segment.end_s, textwrap.fill(f"{label}{segment.text}", LINE))


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


@dataclass(frozen=True)
class Transcriber:
    """Decodes recordings, the long ones in parts between pauses.

    Attributes:
        max_segment_s: the most seconds of a part.
        each_channel: decode all channels; False: the first.
    """

    recognizer: Recognizer
    decoder: Decoder
    loaders: LoaderFactory
    max_segment_s: float
    each_channel: bool = False

    def __call__(self, files: Sequence[Path], name: str = "audio") -> tuple[list[Transcript], list[tuple[str, str]]]:
        """Return the transcripts of files that can be read, in order, and (path, reason) for the others."""
        with tempfile.TemporaryDirectory() as folder:
            read, unreadable = audio_files(files, self.max_segment_s, self.each_channel, Path(folder))
            places = {cut.id: (path, cut) for path, of_file in read for cut in of_file}
            cuts = [cut for _, cut in places.values()]
            parts = self.recognizer, self.decoder, self.loaders
            decoded = decode_all(*parts, cuts, name) if cuts else Processed[Utterance]()
        segments: dict[Path, list[Segment]] = defaultdict(list)
        for result in decoded.results:
            path, cut = places[result.id]
            if result.hypothesis:
                segments[path].append(Segment.of(result, cut.channel + 1, cut.start, round(cut.end, 3)))
        # a recording is read whole or not at all
        failed = {str(places[cut_id][0]): reason for cut_id, reason in decoded.unread}
        done = [
            Transcript.of(path, segments[path], self._silence(of_file))
            for path, of_file in read
            if str(path) not in failed
        ]
        return done, [*unreadable, *failed.items()]

    def _silence(self, parts: Sequence[Any]) -> float:
        """Return the share of a recording that is in none of its parts."""
        if not parts:
            return 1.0
        recording = parts[0].recording
        total_s = recording.duration * (recording.num_channels if self.each_channel else 1)
        return float(1 - sum(part.duration for part in parts) / total_s)


class TranscriptFolder:
    """Transcripts in a folder, below which they lie as the audio lies below the place that it was found in.

    The record is a line of JSON about the maker, and then one for each recording.

    Args:
        folder: of transcripts; it need not exist.
        files: recordings, with the places that they were found in.
        formats: of transcripts, keys of ``FORMATS``.

    Raises:
        ConfigError: two recordings would have the same transcripts.
    """

    def __init__(self, folder: Path, files: Mapping[Path, Path], formats: Sequence[str]) -> None:
        self.folder, self.record, self.formats = folder, folder / RECORD, formats
        self.names = {file: str(file.relative_to(place).with_suffix("")) for file, place in files.items()}
        for name, number in Counter(self.names.values()).items():
            if number > 1:
                same = [str(file) for file, other in self.names.items() if other == name]
                raise ConfigError(
                    f"output_dir: {same[0]} and {same[1]} would have one transcript, {folder / name}.{formats[0]}; "
                    "transcribe them to different folders, or rename one"
                )
        self.maker: Mapping[str, Any] = {}
        self.is_whole = True
        self.known: dict[str, tuple[int, int]] = {}  # content of recordings, by the names of their transcripts

    def made_by(self, maker: Mapping[str, Any]) -> None:
        """Read the record.

        Raises:
            ConfigError: transcripts there were made by something else.
        """
        self.maker = maker
        if not self.record.exists():
            return
        lines = self.record.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
        # a process that was killed may have left half a line
        self.is_whole = lines[-1].endswith("\n")
        written = json.loads(lines[0])
        for line in lines[1:]:
            with contextlib.suppress(ValueError):
                name, size, crc32 = json.loads(line)
                self.known[name] = (size, crc32)
        if keys := [key for key in {**written, **maker} if written.get(key) != maker.get(key)]:
            raise ConfigError(
                f"output_dir: {self.folder} holds transcripts that were made with another {' and '.join(keys)}; name "
                f"another folder, or remove them and {RECORD}"
            )

    def missing(self) -> tuple[list[Path], list[tuple[Path, str]]]:
        """Return the recordings that lack transcripts, and (path, reason) for those whose name is taken."""
        missing, blocked = [], []
        for file in self.names:
            existing = [path for path in self._paths(file).values() if path.exists()]
            if existing and (why := self._why_not_of(file)):
                blocked.append((file, f"{str(existing[0])!r} {why}; remove it, or name another output_dir"))
            elif len(existing) < len(self.formats):
                missing.append(file)
        return missing, blocked

    def write(self, transcript: Transcript) -> None:
        """Record a recording, and write the transcripts that it lacks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines: list[Any] = [] if self.record.exists() else [self.maker]
        lines.append([self.names[transcript.path], *file_content(transcript.path)])
        with self.record.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write("" if self.is_whole else "\n")
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
        self.is_whole = True
        for name, path in self._paths(transcript.path).items():
            if not path.exists():
                with contextlib.suppress(FileExistsError):  # of the user, or of another process
                    write_new(path, FORMATS[name](transcript))

    def _paths(self, file: Path) -> dict[str, Path]:
        return {name: self.folder / f"{self.names[file]}.{name}" for name in self.formats}

    def _why_not_of(self, file: Path) -> str:
        """Return why a file that exists is no transcript of this recording; empty if it is one."""
        if self.names[file] not in self.known:
            return f"was not written by asr-transcribe, as {RECORD} of that folder does not name it"
        try:
            return "" if self.known[self.names[file]] == file_content(file) else "is of another recording"
        except OSError:  # which reading it will tell
            return ""
