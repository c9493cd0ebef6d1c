"""icefall's ``recogs-SET-SUFFIX.txt``: ``ID:<tab>ref=['A', "DON'T"]``, then ``ID:<tab>hyp=[…]``.

Written by ``store_transcripts`` and ``store_transcripts_and_timestamps`` in icefall/utils.py, which print Python lists,
or the whole text if a recipe did not split it. Where a recipe counts characters, the list holds characters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row
from asr.text_files import read_lines

SUFFIXES = (".txt",)
LINE = re.compile(r"(.*?):\t(ref|hyp|timestamp_ref|timestamp_hyp)=(.*)")
ERRORS = "\nPER-UTT DETAILS:"  # in errs-SET-SUFFIX.txt


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the first lines of a file, or the keys of its first JSON object, are of this format."""
    match = LINE.match(head)
    return (match is not None and match[2] == "ref") or ERRORS in head


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: a line is of another kind, or an utterance has no hypothesis.
    """
    texts: dict[str, str] = {}
    id, where = "", ""
    for number, line in enumerate(read_lines(path), 1):
        match = LINE.fullmatch(line.rstrip("\r\n"))
        # a doubled utterance has a second reference
        if match is None or (match[2] not in ("ref", "timestamp_ref", "timestamp_hyp") and match[1] != id):
            expected = f"ID:<tab>ref=… or the hyp=… of {id!r}" if id else "ID:<tab>ref=…"
            errors = "" if id else "; errs-… only lists errors: give recogs-…, which icefall writes beside it"
            raise ValueError(f"{path}, line {number}: expected {expected}, given {line[:200]!r}{errors}")
        if match[2] == "ref":
            if texts:
                raise ValueError(f"{where}: the utterance {id!r} has no hyp=…")
            id, where = match[1], f"{path}, line {number}"
            texts = {"ref": _text(match[3], where)}
        elif match[2] == "hyp":
            yield Row(id, texts["ref"], _text(match[3], f"{path}, line {number}"))
            texts = {}
    if texts:
        raise ValueError(f"{where}: the utterance {id!r} has no hyp=…")


def _text(value: str, where: str) -> str:
    if not value.startswith("["):
        return value
    try:
        return " ".join(word for word in ast.literal_eval(value) if word)
    except (ValueError, SyntaxError, TypeError) as error:
        raise ValueError(f"{where}: expected a list of words, given {value[:200]!r}") from error
