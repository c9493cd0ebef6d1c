"""icefall's ``recogs-SET-SUFFIX.txt``: ``ID:<tab>ref=['A', "DON'T"]``, then ``ID:<tab>hyp=[…]``.

Written by ``store_transcripts`` and ``store_transcripts_and_timestamps`` in icefall/utils.py, which print Python lists,
or the whole text if a recipe did not split it. Where a recipe counts characters, the list holds characters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row

SUFFIXES = (".txt",)
LINE = re.compile(r"(.*?):\t(ref|hyp|timestamp_ref|timestamp_hyp)=(.*)")


def matches(head: str) -> bool:
    """Return whether the first lines of a file are of this format."""
    match = LINE.match(head)
    return match is not None and match[2] == "ref"


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: a line is of another kind, or an utterance has no hypothesis.
    """
    texts: dict[str, str] = {}
    id, place = "", 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = LINE.fullmatch(line)
        # a doubled utterance has a second reference
        if match is None or (match[2] not in ("ref", "timestamp_ref", "timestamp_hyp") and match[1] != id):
            raise ValueError(
                f"{path}, line {number}: expected ID:<tab>ref=… or the hyp=… of {id!r}, given {line[:200]!r}"
            )
        if match[2] == "ref":
            if texts:
                raise ValueError(f"{path}, line {place}: the utterance {id!r} has no hyp=…")
            id, texts, place = match[1], {"ref": _text(match[3])}, number
        elif match[2] == "hyp":
            yield Row(id, texts["ref"], _text(match[3]))
            texts = {}
    if texts:
        raise ValueError(f"{path}, line {place}: the utterance {id!r} has no hyp=…")


def _text(value: str) -> str:
    if not value.startswith("["):
        return value
    return " ".join(word for word in ast.literal_eval(value) if word)
