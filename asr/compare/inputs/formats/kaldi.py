"""Kaldi's ``text``: an utterance's id, a space, and its words; also ESPnet's ``hyp/text`` and ``hyp.scp``.

An empty text is an id alone. The references are another such file, see ``references``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row
from asr.text_files import read_lines

SUFFIXES = (".scp",)


def matches(head: str, keys: Collection[str], most: int = 2) -> bool:
    """Return whether the first lines of a file may be of this format: lines whose first words are different.

    Args:
        head: the first lines.
        keys: of the first JSON object.
        most: how often an id may occur on average: some may occur twice, which is said of each.
    """
    ids = [line.split(maxsplit=1)[0] for line in head.split("\n") if line.strip()]
    return not keys and not head.startswith(("=", "%")) and 0 < len(ids) <= most * len({*ids})


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file."""
    for line in read_lines(path):
        if line.strip():
            id, *words = line.split()
            yield Row(id, hypothesis=" ".join(words))
