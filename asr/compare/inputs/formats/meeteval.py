"""STM, CTM and SegLST, read by MeetEval; what a speaker says in a recording is one utterance.

A speaker's words are joined in the order of their times. CTM names no speakers; each recording is an utterance.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row
from asr.errors import first_line
from asr.text_files import as_text, read_lines

SUFFIXES = (".stm", ".ctm", ".json")
NUMBER = r"\d+(?:\.\d+)?"
STM = re.compile(rf"\S+ +\S+ +\S+ +{NUMBER} +{NUMBER}( .*)?")
CTM = re.compile(rf"\S+ +\S+ +{NUMBER} +{NUMBER} +\S+( +[\d.]+)?")


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the first lines of a file, or the keys of its first JSON object, are of one of these formats."""
    return _format(head, keys) is not None


def _format(head: str, keys: Collection[str]) -> str | None:
    if "session_id" in keys:
        return "SegLST"
    lines = [line.rstrip() for line in head.split("\n") if line.strip() and not line.startswith(";;")]
    # the fourth word of a CTM's line is a duration, that of an STM's a time, and its fifth one too
    for name, pattern in (("STM", STM), ("CTM", CTM)):
        if lines and all(map(pattern.fullmatch, lines)):
            return name
    return None


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: MeetEval is not installed, or cannot read it.
    """
    text = "".join(read_lines(path)).replace("\r\n", "\n")
    kind = "SegLST" if text.lstrip().startswith("[") else _format("\n".join(text.split("\n", 20)[:20]), ())
    texts_by_speaker = defaultdict(list)
    try:
        import meeteval.io

        segments = getattr(meeteval.io, kind or "STM").parse(text).to_seglst()
        for segment in sorted(segments, key=lambda segment: float(segment.get("start_time", 0))):
            speaker = None if kind == "CTM" else str(segment["speaker"])
            texts_by_speaker[segment["session_id"], speaker].append(as_text(segment["words"], "words"))
    except ImportError as error:
        raise ValueError(f"{path} needs {error.name}: pip install meeteval simplejson") from error
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path}: MeetEval cannot read it: {first_line(error)}") from error
    for (recording, speaker), texts in texts_by_speaker.items():
        id = recording if speaker is None else f"{recording}-{speaker}"
        yield Row(id, hypothesis=" ".join(" ".join(texts).split()), speaker=speaker)
