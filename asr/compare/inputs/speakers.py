"""Who speaks in which utterance, where the runs' own data do not say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from asr.compare.inputs.runs import Run, SetErrors
from asr.evaluation.metrics_csv import bounded_lines
from asr.safe_io import check_regular_file

SpeakerOf = Callable[[str], str]


def read_speakers(path: Path) -> SpeakerOf:
    """Read a table of utterances and their speakers, and return a function from the first to the second.

    A line has an utterance's id, a tab, and a speaker; or a space in place of the tab, and a speaker without spaces,
    as in Kaldi's ``utt2spk``.

    Raises:
        ValueError: the file is not such a table, or the function is given another utterance.
    """
    table: dict[str, str] = {}
    try:
        check_regular_file(path)
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(bounded_lines(file), start=1):
                if not line.strip():
                    continue
                fields = line.strip().split("\t") if "\t" in line.strip() else line.rsplit(maxsplit=1)
                fields = [field.strip() for field in fields]
                if len(fields) != 2 or not all(fields) or fields[0] in table:
                    raise ValueError(
                        f"line {number}: expected a new id, a space or a tab, and a speaker, given {line!r}"
                    )
                table[fields[0]] = fields[1]
    except UnicodeDecodeError:
        raise ValueError(f"speakers: {path} is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"speakers: {path}, {error}") from None

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
        ValueError: it is no regular expression, or the function is given an id in which it finds nothing.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"speaker_pattern={pattern!r} is no regular expression: {error}") from None

    def speaker_of(utterance: str) -> str:
        found = compiled.search(utterance)
        speaker = found and (found[1] if compiled.groups else found[0])
        if not speaker:
            raise ValueError(f"speaker_pattern={pattern!r} finds no speaker in the utterance {utterance!r}")
        return speaker

    return speaker_of


def with_speakers(runs: Sequence[Run], speaker_of: SpeakerOf) -> list[Run]:
    """Return the runs with other speakers, in every test set.

    Raises:
        ValueError: an utterance has none.
    """
    speakers = {
        id: speaker_of(id) for id in sorted({id for run in runs for one in run.sets.values() for id in one.ids})
    }

    def changed(sets: Mapping[str, SetErrors]) -> dict[str, SetErrors]:
        return {
            name: replace(errors, speakers=tuple(speakers[id] for id in errors.ids)) for name, errors in sets.items()
        }

    return [replace(run, sets=changed(run.sets)) for run in runs]
