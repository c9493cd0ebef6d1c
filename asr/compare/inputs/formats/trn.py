"""NIST's ``hyp.trn``: words, then the utterance's id in parentheses; of sclite and ESPnet2.

The id is ``SPEAKER-UTTERANCE``, and both may have hyphens. Kaldi and ESPnet begin the utterance with its speaker; then,
or if there is a single hyphen, it is clear where the speaker ends. Otherwise, or if all have one, the speaker is
unknown.

Reference:
    "trn", in the documentation of NIST's SCTK, doc/infmts.htm.
    Differs: alternatives, ``{a / b}``, and words that may be left out, ``(uh)``, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from asr.compare.inputs.rows import Row
from asr.text_files import read_lines

SUFFIXES = (".trn",)
LINE = re.compile(r"(.*?)\s*\(([^()\s]+)\)\s*")
OPTIONAL = re.compile(r"(?<!\S)(?:[{}@]|\(\S+\))(?!\S)")


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the first lines of a file, or the keys of its first JSON object, are of this format."""
    lines = [line for line in head.split("\n") if line.strip() and not line.startswith(";;")]
    return bool(lines) and all(map(LINE.fullmatch, lines))


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: a line has no id, or alternatives.
    """
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip() or line.startswith(";;"):
            continue
        match = LINE.fullmatch(line.rstrip("\r\n"))
        if match is None:
            raise ValueError(f"{path}, line {number}: expected words, then (ID); given {line[:200]!r}")
        if option := OPTIONAL.search(match[1]):
            raise ValueError(
                f"{path}, line {number}: {option[0]!r} marks alternatives, or words that may be left out, which only "
                f"sclite scores; write one text of {match[2]!r}, or compare its counts in a table"
            )
        rows.append(Row(match[2], hypothesis=" ".join(match[1].split()), speaker=_speaker(match[2])))
    # one name for all, as in utt-001, is no speaker
    known = len({row.speaker for row in rows}) > 1
    yield from (row if known else replace(row, speaker=None) for row in rows)


def _speaker(id: str) -> str | None:
    places = [place for place, character in enumerate(id) if character == "-"]
    if len(places) > 1:
        places = [place for place in places if id[place + 1 :].startswith(id[:place])]
    return id[: places[0]] if len(places) == 1 else None
