"""What the systems got wrong: by speaker, by word, and utterance by utterance, aligned with the reference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asr.compare.inputs.runs import Run, Texts
from asr.compare.report.tables import SYSTEM, Cell, Column, Table
from asr.compare.result import Comparison, SetComparison
from asr.evaluation.formatting import UNKNOWN, count, percent

MAX_SPEAKERS = 200
NUM_SUBSTITUTIONS = 10
MAX_UTTERANCES = 200


@dataclass(frozen=True)
class Mark:
    """A word in a line of an alignment.

    Attributes:
        text: empty if there is no word.
        error: ``sub``, ``del``, ``ins``, or nothing.
    """

    text: str
    error: str = ""


@dataclass(frozen=True)
class Example:
    """An utterance with what each system recognized.

    Attributes:
        errors: by system.
        lines: the reference, then a line of each system; words of one column belong together.
    """

    id: str
    speaker: str
    errors: Mapping[str, int]
    lines: Sequence[tuple[str, Sequence[Mark]]]


@dataclass(frozen=True)
class Errors:
    """The errors on one test set.

    Attributes:
        tables: rates by speaker, and the most frequent substitutions.
        examples: of every pair of systems those where one is right and the other is not, most errors first.
        note: how many there are.
    """

    systems: Sequence[str]
    tables: Sequence[Table]
    examples: Sequence[Example]
    note: str


def errors_of(comparison: Comparison, test_set: SetComparison) -> Errors | None:
    """Return the errors on a test set, of the first run of each system; None if texts are unknown."""
    runs = [min(comparison.runs_of(row.system), key=lambda run: run.seed) for row in test_set.rows]
    if any(test_set.name not in run.sets or run.sets[test_set.name].texts is None for run in runs):
        return None
    texts = {run.system: run_texts for run in runs if (run_texts := run.sets[test_set.name].texts)}
    counts = np.array([run.sets[test_set.name].errors for run in runs])
    places = _chosen(counts)
    sets = runs[0].sets[test_set.name]
    examples = [
        Example(
            sets.ids[place],
            sets.speakers[place] or "",
            {run.system: int(errors) for run, errors in zip(runs, counts[:, place], strict=True)},
            aligned(texts, place),
        )
        for place in places
    ]
    num_wrong = int((counts.sum(0) > 0).sum())
    seeds = f", each with seed {runs[0].seed}" if test_set.has_seeds else ""
    note = f"Shown: {len(places)} of {count(num_wrong, 'utterance')} with errors of any system{seeds}."
    return Errors([*texts], [_speaker_table(test_set, runs), _substitutions(texts)], examples, note)


def _chosen(counts: np.ndarray) -> list[int]:
    """Return which utterances are shown: for each pair of systems where one is right, and those with most errors."""
    num_systems = len(counts)
    each = max(2, MAX_UTTERANCES // max(1, num_systems * num_systems))
    worst = np.argsort(-counts.sum(0), kind="stable")
    places = [int(place) for place in worst[: 2 * each] if counts[:, place].any()]
    for right in range(num_systems):
        for wrong in range(num_systems):
            order = np.argsort(-counts[wrong], kind="stable")
            fits = order[(counts[right][order] == 0) & (counts[wrong][order] > 0)]
            places += map(int, fits[:each])
    chosen = list(dict.fromkeys(places))
    return sorted(chosen, key=lambda place: -counts[:, place].sum())


def aligned(texts: Mapping[str, Texts], place: int) -> list[tuple[str, list[Mark]]]:
    """Return the reference and all hypotheses of an utterance, in columns."""
    first = next(iter(texts.values()))
    reference = first.words(first.references[place])
    by_system: dict[str, tuple[list[Mark], dict[int, list[str]]]] = {}
    for system, system_texts in texts.items():
        recognized = system_texts.words(system_texts.hypotheses[place])
        marks, inserted = [Mark(word) for word in reference], defaultdict[int, list[str]](list)
        for edit in system_texts.edits[place]:
            if edit.tag == "insert":
                inserted[edit.src_pos].append(recognized[edit.dest_pos])
            elif edit.tag == "delete":
                marks[edit.src_pos] = Mark(reference[edit.src_pos], "del")
            else:
                marks[edit.src_pos] = Mark(recognized[edit.dest_pos], "sub")
        by_system[system] = marks, inserted
    widths = [max(len(inserted[slot]) for _, inserted in by_system.values()) for slot in range(len(reference) + 1)]
    lines: list[tuple[str, list[Mark]]] = [("reference", []), *((system, []) for system in by_system)]
    for slot, width in enumerate(widths):
        for name, line in lines:
            words = by_system[name][1][slot] if name in by_system else []
            line += [Mark(words[number], "ins") if number < len(words) else Mark("") for number in range(width)]
            if slot < len(reference):
                line.append(by_system[name][0][slot] if name in by_system else Mark(reference[slot]))
    return lines


def _speaker_table(test_set: SetComparison, runs: Sequence[Run]) -> Table:
    """Return the rate of each speaker, most words first; without rows if speakers are unknown."""
    num_words: Counter[str] = Counter()
    errors: dict[str, Counter[str]] = {run.system: Counter() for run in runs}
    for run in runs:
        set_errors = run.sets[test_set.name]
        for speaker, num, wrong in zip(set_errors.speakers, set_errors.words, set_errors.errors, strict=True):
            if speaker is not None:
                num_words[speaker] += num if run is runs[0] else 0
                errors[run.system][speaker] += wrong
    rows = [
        [
            Cell(speaker),
            Cell(str(num)),
            *(Cell(percent(by_speaker[speaker] / num) if num else UNKNOWN) for by_speaker in errors.values()),
        ]
        for speaker, num in num_words.most_common(MAX_SPEAKERS)
    ]
    names = (f"{system} {test_set.rate_name} %" for system in errors)
    columns = [Column("speaker", is_text=True), Column(f"{test_set.unit}s"), *map(Column, names)]
    more = len(num_words) - len(rows)
    return Table(
        "By speaker", columns, rows, [f"{count(more, 'more speaker')} with fewer {test_set.unit}s."] if more else []
    )


def _substitutions(by_system: Mapping[str, Texts]) -> Table:
    """Return the most frequent substitutions of each system."""
    rows = []
    for system, texts in by_system.items():
        pairs: Counter[tuple[str, str]] = Counter()
        for place, edits in enumerate(texts.edits):
            if any(edit.tag == "replace" for edit in edits):
                ref, hyp = texts.words(texts.references[place]), texts.words(texts.hypotheses[place])
                pairs.update((ref[edit.src_pos], hyp[edit.dest_pos]) for edit in edits if edit.tag == "replace")
        frequent = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:NUM_SUBSTITUTIONS]
        shown = ", ".join(f"{ref} → {hyp} ({num})" for (ref, hyp), num in frequent)
        rows.append([Cell(system), Cell(str(pairs.total())), Cell(shown or UNKNOWN)])
    columns = [SYSTEM, Column("substitutions"), Column("most frequent", is_text=True)]
    return Table("Substitutions", columns, rows)
