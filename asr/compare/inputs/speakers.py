"""Speakers of utterances, if the runs' own data do not name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from asr.compare.inputs.rows import part_of_id
from asr.compare.inputs.runs import Run
from asr.errors import ConfigError
from asr.safe_io import named_path
from asr.text_files import composed, numbered_lines

SpeakerOf = Callable[[str], str]


def read_speakers(path: Path) -> SpeakerOf:
    """Read a table of utterances and their speakers, and return a function from the first to the second.

    A line has an utterance's id, a tab, and a speaker; or a space in place of the tab, and a speaker without spaces,
    as in Kaldi's ``utt2spk``.

    Raises:
        ValueError: the file is not such a table, or the function is given another utterance.
    """
    table: dict[str, str] = {}
    for where, line in numbered_lines(path):
        text = line.strip()
        fields = [field.strip() for field in (text.split("\t") if "\t" in text else text.rsplit(maxsplit=1))]
        if len(fields) != 2 or fields[0] in table:
            raise ValueError(f"speakers: {where}: expected a new id, a space or a tab, and a speaker, given {text!r}")
        table[fields[0]] = fields[1]

    def speaker_of(utterance: str) -> str:
        if composed(utterance) not in table:
            raise ValueError(f"speakers: {path} has no line for the utterance {utterance!r}")
        return table[composed(utterance)]

    return speaker_of


def named_speakers(file: object, pattern: str | None) -> SpeakerOf | None:
    """Return the function that finds the speaker of an utterance, if the user has given ``speakers`` or a pattern."""
    if file is not None and pattern is not None:
        raise ConfigError("give speakers=FILE or speaker_pattern=REGEX, not both")
    if file is not None:
        return read_speakers(named_path(file))
    return None if pattern is None else part_of_id("speaker_pattern", pattern)


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
