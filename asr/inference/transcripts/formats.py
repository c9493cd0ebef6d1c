"""The formats of transcripts, by the ending of their files."""

from __future__ import annotations

import json
from collections.abc import Callable

from asr.evaluation.word_files import ctm_lines, word_row
from asr.inference.transcripts.subtitles import srt, vtt
from asr.inference.transcripts.transcript import Transcript


def _json(transcript: Transcript) -> str:
    """Return a line of JSON: all words with their times, and the segments that they are in."""
    words = [word_row(word, channel=segment.channel) for segment in transcript.segments for word in segment.words]
    segments = [
        {"channel": one.channel, "start": one.start_s, "end": one.end_s, "text": one.text}
        for one in transcript.segments
    ]
    whole = {"id": str(transcript.path), "text": transcript.text, "words": words, "segments": segments}
    return json.dumps(whole, ensure_ascii=False) + "\n"


def _ctm(transcript: Transcript) -> str:
    lines = (ctm_lines(str(transcript.path), one.words, one.channel) for one in transcript.segments)
    return "".join(lines)


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "tsv": lambda whole: f"{whole.path}\t{whole.text}\n",
    "txt": lambda whole: "".join(f"{whole.label(one)}{one.text}\n" for one in whole.segments),
    "json": _json,
    "ctm": _ctm,
    "srt": srt,
    "vtt": vtt,
}
OF_SEVERAL = ("tsv", "json", "ctm")  # a file may hold several recordings
