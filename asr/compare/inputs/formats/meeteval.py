"""STM, CTM and SegLST, read by MeetEval; what a speaker says in a recording is one utterance.

A speaker's words are joined in the order of their times. CTM names no speakers; each recording is an utterance.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row

SUFFIXES = (".stm", ".ctm", ".json")
NUMBER = r"\d+(?:\.\d+)?"
STM = re.compile(rf"\S+ +\S+ +\S+ +{NUMBER} +{NUMBER}( .*)?")
CTM = re.compile(rf"\S+ +\S+ +{NUMBER} +{NUMBER} +\S+( +[\d.]+)?")


def matches(head: str) -> bool:
    """Return whether the first lines of a file are of one of these formats."""
    return _format(head) is not None


def _format(head: str) -> str | None:
    if head.lstrip().startswith("["):
        return "seglst" if '"session_id"' in head else None
    lines = [line.rstrip() for line in head.splitlines() if line.strip() and not line.startswith(";;")]
    # the fourth word of a CTM's line is a duration, that of an STM's a time, and its fifth one too
    for name, pattern in (("stm", STM), ("ctm", CTM)):
        if lines and all(map(pattern.fullmatch, lines)):
            return name
    return None


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: MeetEval is not installed.
    """
    with path.open(encoding="utf-8") as file:
        kind = _format("".join(line for line, _ in zip(file, range(20), strict=False)))
    try:
        import meeteval.io

        segments = meeteval.io.load(path, format=kind).to_seglst()
    except ImportError as error:
        raise ValueError(f"{path} needs {error.name}: pip install meeteval simplejson") from error
    texts_by_speaker = defaultdict(list)
    for segment in sorted(segments, key=lambda segment: float(segment.get("start_time", 0))):
        speaker = None if kind == "ctm" else str(segment["speaker"])
        texts_by_speaker[segment["session_id"], speaker].append(segment["words"])
    for (recording, speaker), texts in texts_by_speaker.items():
        id = recording if speaker is None else f"{recording}-{speaker}"
        yield Row(id, hypothesis=" ".join(" ".join(texts).split()), speaker=speaker)
