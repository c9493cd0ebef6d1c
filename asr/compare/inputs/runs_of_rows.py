"""Rows → runs that can be compared: every utterance once, the same ones and the same references of all systems."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

from rapidfuzz.distance import Levenshtein

from asr.compare.inputs.rows import Row, advice_on_ids
from asr.compare.inputs.runs import Inputs, Run, SetErrors, Texts
from asr.evaluation.dependence import dependence_p, depends_on_audio
from asr.evaluation.formatting import count, shortlist
from asr.evaluation.normalization import Normalization
from asr.evaluation.wer import Unit, Utterance, words_of
from asr.text_files import read_lines

Allowed = Literal["missing", "duplicates", "references", "empty"]
DEFAULT_SET = "test"
RunKey = tuple[str, int | None]
Tables = Mapping[str, Mapping[RunKey, Mapping[str, Row]]]  # by test set, run and id


def runs_of_rows(
    rows: Iterable[Row],
    *,
    normalize: str = "none",
    unit: Unit = "word",
    by: Sequence[str] = (),
    allow: Collection[Allowed] = (),
    training_texts: Path | None = None,
) -> Inputs:
    """Score rows and group them by system and seed.

    Args:
        rows: of any systems and sets.
        normalize: how texts are changed before they are scored, see ``Normalization``.
        unit: what is counted, if rows have texts.
        by: names of columns; each test set is compared on each part with one value too.
        allow: what is no error. ``missing``, ``duplicates``, ``references``: utterances that not all systems have, that
            occur twice, or whose references differ are left out of all systems; ``empty``: each word that is recognized
            where the reference is empty is an error.
        training_texts: a file of texts; utterances whose references occur in it are a part of their own.

    Raises:
        ValueError: what is not allowed, each with the number of utterances and some of them.
    """
    if unknown := set(allow) - {*get_args(Allowed)}:
        raise ValueError(f"allow: {min(unknown)!r} is unknown; allowed: {', '.join(get_args(Allowed))}")
    changed = Normalization(normalize)
    normalized: Callable[[str], str] = str if normalize == "none" else cache(changed.text)
    tables, doubled, expected = _by_run(rows)
    keys = {key for runs_of_set in tables.values() for key in runs_of_set}
    has_seeds = all(seed is not None for _, seed in keys)
    if not has_seeds and any(seed is not None for _, seed in keys):
        without = sorted({system for system, seed in keys if seed is None})
        raise ValueError(f"some results name their seed, others do not ({shortlist(without)}): name all, or none")
    notes, sets, labels = list[str](), dict[str, dict[RunKey, SetErrors]](), dict[str, dict[str, tuple[str, ...]]]()
    for name, runs_of_set in sorted(tables.items()):
        if (absent := keys - runs_of_set.keys()) and "missing" not in allow:
            num = len(set().union(*runs_of_set.values()))
            who = "; ".join(f"{_named(key)} lacks {num} of {num}" for key in sorted(absent, key=_named))
            raise ValueError(
                f"{name}: {count(num, 'utterance')}: {who}. Correct the files, or give allow=[missing] to compare "
                "this set without them"
            )
        ids = _Checks(name, runs_of_set, doubled[name], expected[name], allow, normalized, notes).kept()
        sets[name] = {key: _errors(ids, run_rows, normalized, unit) for key, run_rows in runs_of_set.items()}
        first = next(iter(runs_of_set.values()))
        labels[name] = {column: _labels(column, runs_of_set, ids) for column in by}
        if training_texts is not None:
            texts = [normalized(first[id].reference or "") for id in ids]
            in_training = occurring(texts, training_texts, normalized, unit)
            labels[name][f"reference in {training_texts.name}"] = tuple(
                "yes" if text in in_training else "no" for text in texts
            )
            num = sum(text in in_training for text in texts)
            notes.append(
                f"{name}: the references of {num} of {count(len(ids), 'utterance')} occur in {training_texts.name} "
                "(training_texts); see the verdicts with and without them"
            )
    _complain_if_ids_are_guessed(tables)
    notes.append(_how_scored(tables, changed, unit))
    runs = [
        Run(
            Path(system if seed is None else f"{system}/{seed}"),
            system,
            seed or 0,
            {name: errors[system, seed] for name, errors in sets.items() if (system, seed) in errors},
            unit=unit,
        )
        for system, seed in sorted(keys, key=lambda key: (key[0], key[1] or 0))
    ]
    return Inputs(runs, notes=notes, has_seeds=has_seeds, labels=labels)


def _by_run(rows: Iterable[Row]) -> tuple[Tables, Mapping[str, set[str]], Mapping[str, set[str]]]:
    """Return for each test set the rows of each run by id, ids that occur twice in a run, and ids of references alone.

    Raises:
        ValueError: there are no results.
    """
    tables: dict[str, dict[RunKey, dict[str, Row]]] = defaultdict(lambda: defaultdict(dict))
    doubled: dict[str, set[str]] = defaultdict(set)
    expected: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        table = tables[row.set or DEFAULT_SET][row.system or "system", row.seed]
        if row.hypothesis is None and row.errors is None:  # only its reference is known
            expected[row.set or DEFAULT_SET].add(row.id)
            continue
        if row.id in table:
            doubled[row.set or DEFAULT_SET].add(row.id)
        table[row.id] = row
    if not tables:
        raise ValueError("there are no results")
    for name, runs in tables.items():
        if without := [_named(key) for key, table in runs.items() if not table]:
            raise ValueError(
                f"{name}: {shortlist(without)}: there are no hypotheses; give columns.hypothesis=NAME if their column "
                "has another name"
            )
    return tables, doubled, expected


@dataclass
class _Checks:
    """What must be the same in all runs of a test set.

    Attributes:
        name: of the set.
        runs: rows by id, by system and seed.
        doubled: ids that a run has twice.
        expected: further ids, of utterances that no run may have.
        allow: what is no error.
        normalized: changes a text.
        notes: gets a sentence for each thing that is left out.
    """

    name: str
    runs: Mapping[RunKey, Mapping[str, Row]]
    doubled: Collection[str]
    expected: Collection[str]
    allow: Collection[Allowed]
    normalized: Callable[[str], str]
    notes: list[str]

    def kept(self) -> list[str]:
        """Return the ids of the utterances that are compared, in order."""
        every = set(self.expected).union(*self.runs.values())
        lacking = {key: every - rows.keys() for key, rows in self.runs.items() if len(rows) < len(every)}
        missing = set[str]().union(*lacking.values())
        who = "; ".join(
            f"{_named(key)} lacks {len(ids)} of {len(every)}: {shortlist(sorted(ids))}" for key, ids in lacking.items()
        )
        advice = advice_on_ids([*self.runs.values(), *([self.expected] if self.expected else [])]) if missing else ""
        self._leave_out("missing", missing, f"not every system has every utterance ({who}){advice}")
        self._leave_out("duplicates", set(self.doubled), "occur twice")
        first = next(iter(self.runs.values()))
        ids = sorted(every - missing - set(self.doubled))
        self._require_references(ids)
        other = {
            id
            for rows in self.runs.values()
            for id in ids
            if rows[id].reference != first[id].reference and not self._is_same(rows[id], first[id])
        }
        self._leave_out("references", other, f"the references differ between systems{self._why(other)}")
        ids = [id for id in ids if id not in other]
        empty = {id for id in ids if _num_words(first[id], self.normalized) == 0}
        if empty and "empty" not in self.allow:
            self._refuse("empty", empty, "the references are empty")
        if empty:
            of_them = f"the references of {count(len(empty), 'utterance')} are empty"
            self.notes.append(f"{self.name}: {of_them}: each recognized word is an insertion")
        if not ids:
            raise ValueError(f"{self.name}: no utterance is left to compare")
        return ids

    def _is_same(self, row: Row, other: Row) -> bool:
        if row.hypothesis is None or other.hypothesis is None:
            return row.words == other.words
        return self.normalized(row.reference or "") == self.normalized(other.reference or "")

    def _why(self, ids: Collection[str]) -> str:
        """Return that only spelling differs, if that is so."""
        basic = Normalization("basic")
        first = next(iter(self.runs.values()))
        pairs = ((rows[id].reference or "", first[id].reference or "") for rows in self.runs.values() for id in ids)
        same = ids and all(basic.text(reference) == basic.text(other) for reference, other in pairs)
        return " in case or punctuation: give scoring.normalize=basic" if same else ""

    def _require_references(self, ids: Sequence[str]) -> None:
        for key, rows in self.runs.items():
            if without := [id for id in ids if rows[id].hypothesis is not None and rows[id].reference is None]:
                raise ValueError(
                    f"{self.name}: {_named(key)} has no references of {shortlist(without)}: give references=FILE"
                )
            if any(rows[id].hypothesis is None and rows[id].words is None for id in ids):
                raise ValueError(f"{self.name}: {_named(key)} has neither texts nor numbers of words")

    def _leave_out(self, kind: Allowed, ids: Collection[str], problem: str) -> None:
        if ids and kind not in self.allow:
            self._refuse(kind, ids, problem)
        if ids:
            self.notes.append(
                f"{self.name}: {count(len(ids), 'utterance')} left out of all systems (allow={kind}): {problem}"
            )

    def _refuse(self, kind: Allowed, ids: Collection[str], problem: str) -> None:
        raise ValueError(
            f"{self.name}: {count(len(ids), 'utterance')}, {shortlist(sorted(ids))}: {problem}. Correct the files, or "
            f"give allow=[{kind}]"
        )


def _named(key: RunKey) -> str:
    system, seed = key
    return system if seed is None else f"{system} seed {seed}"


def _num_words(row: Row, normalized: Callable[[str], str]) -> int:
    if row.hypothesis is None:
        return row.words or 0
    return len(normalized(row.reference or "").split())


def _errors(ids: Sequence[str], rows: Mapping[str, Row], normalized: Callable[[str], str], unit: Unit) -> SetErrors:
    """Count the errors of a run."""
    speakers = tuple(rows[id].speaker for id in ids)
    if any(rows[id].hypothesis is None for id in ids):
        lengths = tuple(rows[id].words or 0 for id in ids)
        return SetErrors(tuple(ids), speakers, lengths, tuple(rows[id].errors or 0 for id in ids))
    references = tuple(normalized(rows[id].reference or "") for id in ids)
    hypotheses = tuple(normalized(rows[id].hypothesis or "") for id in ids)
    num_words, errors = list[int](), list[int]()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        words = words_of(reference, unit)
        num_words.append(len(words))
        errors.append(0 if reference == hypothesis else Levenshtein.distance(words, words_of(hypothesis, unit)))
    return SetErrors(
        tuple(ids),
        speakers,
        tuple(num_words),
        tuple(errors),
        hashlib.sha256(repr(references).encode()).hexdigest()[:16],
        depends_on_audio(dependence_p(map(Utterance, ids, references, hypotheses))),
        Texts(references, hypotheses, unit),
    )


def _labels(column: str, runs: Mapping[RunKey, Mapping[str, Row]], ids: Sequence[str]) -> tuple[str, ...]:
    """Return the value of a column of each utterance, of whichever run has it."""
    values = []
    for id in ids:
        labels = {
            row.speaker if column == "speaker" else row.columns.get(column) for run in runs.values() if (row := run[id])
        }
        labels.discard(None)
        if len(labels) > 1:
            raise ValueError(
                f"by: {column!r} of the utterance {id!r} differs between systems: {shortlist(sorted(map(str, labels)))}"
            )
        values.append(str(labels.pop()) if labels else "unknown")
    if {*values} == {"unknown"}:
        columns = sorted({name for run in runs.values() for name in run[ids[0]].columns})
        raise ValueError(f"by: no column {column!r}; found {', '.join(columns) or 'none'}")
    return tuple(values)


def occurring(texts: Iterable[str], path: Path, normalized: Callable[[str], str], unit: Unit) -> set[str]:
    """Return which texts occur, as whole words one after another, within a line of a file."""
    # by their first words, so that each word of the file is looked up a few times
    starts: dict[tuple[str, ...], list[tuple[list[str], str]]] = defaultdict(list)
    for text in {*texts}:
        words = words_of(text, unit)
        if words:
            starts[tuple(words[:4])].append((words, text))
    lengths = sorted({len(start) for start in starts})
    in_training: set[str] = set()
    for line in read_lines(path):
        words = words_of(normalized(line), unit)
        for place in range(len(words)):
            for length in lengths:
                for text_words, text in starts.get(tuple(words[place : place + length]), ()):
                    if words[place : place + len(text_words)] == text_words:
                        in_training.add(text)
    return in_training


def _complain_if_ids_are_guessed(tables: Tables) -> None:
    """Refuse counts of utterances that only their place in a table names: nothing would show another order."""
    for name, runs in tables.items():
        first_rows = [next(iter(rows.values())) for rows in runs.values()]
        if len(first_rows) > 1 and any(row.id == "#1" and row.hypothesis is None for row in first_rows):
            raise ValueError(
                f"{name}: errors and words need the column id, so that utterances of two systems are the same"
            )


def _how_scored(tables: Tables, changed: Normalization, unit: Unit) -> str:
    with_texts = {
        row.hypothesis is not None
        for runs in tables.values()
        for rows in runs.values()
        for row in list(rows.values())[:1]
    }
    if with_texts == {False}:
        return "errors were counted by the files' own scorer, not by werdict"
    how = changed.note or "case and punctuation count (scoring.normalize=none)"
    package = f"werdict with rapidfuzz {version('rapidfuzz')}"
    return f"scored by {package}: errors by {unit}, {how}"
