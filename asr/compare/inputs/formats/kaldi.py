"""Kaldi's ``text``: an utterance's id, a space, and its words; also ESPnet's ``hyp/text`` and ``hyp.scp``.

An empty text is an id alone. The references are another such file, see ``references``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row

SUFFIXES = (".scp",)


def matches(head: str) -> bool:
    """Return whether the first lines of a file may be of this format: any lines whose first words are all different."""
    ids = [line.split(maxsplit=1)[0] for line in head.splitlines() if line.strip()]
    return not head.startswith(("{", "[", "=", "%")) and bool(ids) and len({*ids}) == len(ids)


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                id, *words = line.split()
                yield Row(id, hypothesis=" ".join(words))
