"""Speakers of utterances, if the runs' own data do not name them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from asr.compare.inputs.runs import Run

SpeakerOf = Callable[[str], str]


def read_speakers(path: Path) -> SpeakerOf:
    """Read a table of utterances and their speakers, and return a function from the first to the second.

    A line has an utterance's id, a tab, and a speaker; or a space in place of the tab, and a speaker without spaces,
    as in Kaldi's ``utt2spk``.

    Raises:
        ValueError: the file is not such a table, or the function is given another utterance.
    """
    table: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if text := line.strip():
            fields = [field.strip() for field in (text.split("\t") if "\t" in text else text.rsplit(maxsplit=1))]
            if len(fields) != 2 or fields[0] in table:
                expected = "a new id, a space or a tab, and a speaker"
                raise ValueError(f"speakers: {path}, line {number}: expected {expected}, given {text!r}")
            table[fields[0]] = fields[1]

    def speaker_of(utterance: str) -> str:
        if utterance not in table:
            raise ValueError(f"speakers: {path} has no line for the utterance {utterance!r}")
        return table[utterance]

    return speaker_of


def speakers_by_pattern(pattern: str) -> SpeakerOf:
    """Return a function that finds the speaker in an utterance's id.

    Args:
        pattern: a regular expression; the speaker is its first group, or without groups all that it finds.

    Raises:
        re.error: it is no regular expression.
        ValueError: the function is given an id in which it finds nothing.
    """
    compiled = re.compile(pattern)

    def speaker_of(utterance: str) -> str:
        match = compiled.search(utterance)
        speaker = match and (match[1] if compiled.groups else match[0])
        if not speaker:
            raise ValueError(f"speaker_pattern={pattern!r} finds no speaker in the utterance {utterance!r}")
        return speaker

    return speaker_of


def with_speakers(runs: Sequence[Run], speaker_of: SpeakerOf) -> list[Run]:
    """Return the runs with other speakers, in every test set.

    Raises:
        ValueError: an utterance has none.
    """
    return [
        replace(
            run,
            sets={
                name: replace(errors, speakers=tuple(map(speaker_of, errors.ids))) for name, errors in run.sets.items()
            },
        )
        for run in runs
    ]
