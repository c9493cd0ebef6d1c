"""SpeechBrain's ``wer_*.txt``: ``ID, %WER …``, then reference, edits and hypothesis, their words joined by `` ; ``.

Written by ``print_wer_summary`` and ``print_alignments`` in speechbrain/dataio/wer.py: a header, an example of the
alignments, then every utterance that was scored. Of others the header has the number alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from asr.compare.inputs.rows import Row
from asr.text_files import read_lines

SUFFIXES = (".txt",)
UTTERANCE = re.compile(r"(.+), %WER [\d.]+ \[ (\d+) / (\d+), \d+ ins, \d+ del, \d+ sub \]")
ABSENT = re.compile(r"Scored \d+ sentences, (\d+) not present in hyp\.")
EMPTY = "<eps>"


def matches(head: str, keys: Collection[str]) -> bool:
    """Return whether the first lines of a file, or the keys of its first JSON object, are of this format."""
    return head.startswith("%WER ") and "\nScored " in head


def read(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the utterances of a file, then those that were not scored, without their ids.

    Raises:
        ValueError: the words of an utterance are not as many as its line says.
    """
    lines = [line.rstrip("\r\n") for line in read_lines(path)]
    for number, line in enumerate(lines, 1):
        if absent := ABSENT.fullmatch(line):
            for place in range(1, int(absent[1]) + 1):
                yield Row(f"not scored in {path.name}: {place} of {absent[1]}", "")
        elif match := UTTERANCE.fullmatch(line):
            reference, _, hypothesis = map(_words, (*lines[number:], "", "", "")[:3])
            if len(lines) < number + 3 or len(reference) != int(match[3]):
                raise ValueError(
                    f"{path}, line {number}: expected {match[3]} words, edits and a hypothesis, found "
                    f"{len(reference)}: {reference}"
                )
            yield Row(match[1], " ".join(reference), " ".join(hypothesis))


def _words(line: str) -> list[str]:
    return [word for part in line.split(" ; ") if (word := part.strip()) != EMPTY and word]
