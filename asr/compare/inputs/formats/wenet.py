"""Blocks of WeNet's ``compute-wer.py``: ``utt:``, ``WER: … N= C= S= D= I=``, ``lab:`` and ``rec:``.

Words are padded to stand below each other, by spaces, or with ``--padding-symbol=underline`` by ``_``. Letters are
upper case unless ``--cs=1`` was given. A long utterance may have several lines of each, and with ``--v=2`` lines repeat
its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row

SUFFIXES = (".txt",)
COUNTS = re.compile(r"WER: [\d.]+ % N=(\d+) C=(\d+) S=(\d+) D=(\d+) I=(\d+)")
TEXT = re.compile(r"(lab|rec)(?:\(.*?\))?: (.*)")


def matches(head: str) -> bool:
    """Return whether the first lines of a file are of this format."""
    return head.lstrip().startswith("utt: ") and COUNTS.search(head) is not None


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: the words of an utterance are not as many as its counts say, as with other padding than spaces.
    """
    body = path.read_text(encoding="utf-8").partition("\n=======")[0]
    for block in re.split(r"^utt: ", body, flags=re.MULTILINE)[1:]:
        id, _, rest = block.partition("\n")
        counts = COUNTS.match(rest)
        words: dict[str, list[str]] = {"lab": [], "rec": []}
        for name, text in TEXT.findall(rest):
            words[name] += text.split()
        if counts is None:
            raise ValueError(f"{path}: the utterance {id!r} has no line of counts, WER: … N= C= S= D= I=")
        num, hits, substituted, _, inserted = map(int, counts.groups())
        if (len(words["lab"]), len(words["rec"])) != (num, hits + substituted + inserted):
            raise ValueError(
                f"{path}: the utterance {id!r} has {num} words by its counts, {len(words['lab'])} in its text; run "
                "compute-wer.py with --padding-symbol=space"
            )
        yield Row(id, " ".join(words["lab"]), " ".join(words["rec"]))
