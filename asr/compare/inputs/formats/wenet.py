"""Blocks of WeNet's ``compute-wer.py``: ``utt:``, ``WER: … N= C= S= D= I=``, ``lab:`` and ``rec:``.

Words are padded to stand below each other, by spaces, or with ``--padding-symbol=underline`` by ``_``. Letters are
upper case unless ``--cs=1`` was given. A long utterance may have several lines of each, and with ``--v=2`` lines repeat
its id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row
from asr.text_files import read_lines

SUFFIXES = (".txt",)
COUNTS = re.compile(r"WER: [\d.]+ % N=(\d+) C=(\d+) S=(\d+) D=(\d+) I=(\d+)")
TEXT = re.compile(r"(lab|rec)(?:\(.*?\))?: (.*)")


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the first lines of a file, or the keys of its first JSON object, are of this format."""
    return head.lstrip().startswith("utt: ") and COUNTS.search(head) is not None


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file.

    Raises:
        ValueError: the words of an utterance are not as many as its counts say, as with other padding than spaces.
    """
    body = "".join(read_lines(path)).replace("\r\n", "\n").partition("\n=======")[0]
    starts = [match.start() for match in re.finditer(r"^utt: ", body, flags=re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        id, _, rest = body[start:end].removeprefix("utt: ").partition("\n")
        where = f"{path}, line {body.count(chr(10), 0, start) + 1}: the utterance {id!r}"
        counts = COUNTS.match(rest)
        words: dict[str, list[str]] = {"lab": [], "rec": []}
        for name, text in TEXT.findall(rest):
            words[name] += text.split()
        if counts is None:
            raise ValueError(f"{where} has no line of counts, WER: … N= C= S= D= I=")
        num, hits, substituted, _, inserted = map(int, counts.groups())
        if (len(words["lab"]), len(words["rec"])) != (num, hits + substituted + inserted):
            raise ValueError(
                f"{where} has {num} words by its counts, {len(words['lab'])} in its text; run compute-wer.py with "
                "--padding-symbol=space"
            )
        yield Row(id, " ".join(words["lab"]), " ".join(words["rec"]))
