"""Files and tables of results → the runs of systems: which files, whose utterances, which speakers."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from rapidfuzz.distance import Levenshtein

from werdict.error_files import dependence_p, depends_on_audio
from werdict.errors import ConfigError
from werdict.files import named_path
from werdict.formats import FORMATS, TIMED, Row, advice_on_ids, is_kaldi, is_parquet, part_of_id, records_of, rows_of
from werdict.formatting import count, shortlist
from werdict.runs import Inputs, Run, SetErrors, Texts
from werdict.scoring import Normalization, Unit, Utterance, words_of
from werdict.text_files import composed, json_objects, matching_files, numbered_lines, read_lines


def drop_duplicates(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return one run per system and seed, the last by folder name, and messages on the others."""
    unique: dict[tuple[str, int], Run] = {}
    problems = []
    for run in sorted(runs, key=lambda run: str(run.folder)):
        earlier = unique.get((run.system, run.seed))
        if earlier is not None:
            problems.append(
                f"{run.system}, seed {run.seed} was trained twice: {earlier.folder} is left out, {run.folder} is used"
            )
        unique[run.system, run.seed] = run
    return list(unique.values()), problems


def different_budgets(runs: Sequence[Run]) -> list[str]:
    """Return a message if runs had different numbers of updates: then systems differ in more than their settings."""
    names = defaultdict(list)
    for run in runs:
        if run.cost.num_updates is not None:
            names[run.cost.num_updates].append(f"{run.system} seed {run.seed}")
    if len(names) < 2:
        return []
    parts = "; ".join(f"{number} updates: {shortlist(names[number])}" for number in sorted(names))
    return [f"the runs have different numbers of updates; they are compared anyway ({parts})"]


def comparable_runs(runs: Sequence[Run], name: str) -> tuple[list[Run], list[str]]:
    """Return the runs that were tested on the same utterances and references of a set, and why others are left out.

    Those of most runs decide; in a tie, those of the first run. There are none if a single utterance has words.
    """
    problems = []
    if missing := [run.folder for run in runs if name not in run.sets]:
        problems.append(f"{name}: compared without {shortlist(missing)}, which have no errors of this set")
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if name in run.sets:
            errors = run.sets[name]
            groups[errors.ids, errors.words, errors.speakers, errors.references].append(run)
    largest = max(groups.values(), key=len)
    for group in groups.values():
        if group is not largest:
            why = _difference(group[0].sets[name], largest[0].sets[name], largest[0].unit)
            problems.append(f"{name}: {shortlist(run.folder for run in group)} left out: {why}")
    if sum(map(bool, largest[0].sets[name].words)) > 1:
        return largest, problems
    unit = largest[0].unit
    return [], [
        *problems,
        f"{name} is left out: it has a single utterance with {unit}s, which says nothing about others",
    ]


def _difference(left_out: SetErrors, expected: SetErrors, unit: Unit) -> str:
    extra, missing = sorted(set(left_out.ids) - set(expected.ids)), sorted(set(expected.ids) - set(left_out.ids))
    if extra or missing:
        parts = (("also has", extra), ("lacks", missing))
        return f"it has different utterances ({'; '.join(f'{verb} {shortlist(ids)}' for verb, ids in parts if ids)})"
    for quantity, values, others in (
        (f"number of {unit}s", left_out.words, expected.words),
        ("speaker", left_out.speakers, expected.speakers),
    ):
        if ids := [name for name, value, other in zip(expected.ids, values, others, strict=True) if value != other]:
            return f"the {quantity} differs for {shortlist(ids)}"
    return "it was scored against other reference texts, for example because data.text differs"


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

    def named(errors: SetErrors) -> SetErrors:
        return replace(errors, speakers=tuple(map(speaker_of, errors.ids)))

    return [replace(run, sets={name: named(errors) for name, errors in run.sets.items()}) for run in runs]


PLACES = ("system", "seed", "set")
PARTS = re.compile(r"(\{\w+\}|\*\*/|\*+|\?|\[[^\]/]+\])")  # of a pattern, which are no plain text
WILDCARDS = {"**/": "((?:.*/)?)", "**": "(.*)", "*": "([^/]*)", "?": "([^/])"}
HEAD_CHARACTERS = 2**20  # a line may hold the text of an hour
JSON = re.compile(r'\s*(\[\s*)?\{\s*["}]')
# hypotheses whose references usually lie beside them
BESIDE = {"hyp.trn": "ref.trn", "hyp.scp": "ref.scp"}


def read_results(
    results: Any = None,
    *,
    pattern: str | Path | None = None,
    format: str | None = None,
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    id_pattern: str | None = None,
) -> list[Row]:
    """Read results.

    Args:
        results: files, or patterns of files as shells have them; None: those that ``pattern`` matches; or a pandas
            frame or dictionaries with the columns of ``table``.
        pattern: says by ``{system}``, ``{seed}`` and ``{set}`` what the parts of a path are; other parts are as in
            patterns of shells.
        format: one of ``FORMATS``; None: as the contents say.
        references: a file of any of the formats with the reference texts, or a table of ids and references; its name
            may hold ``{system}``, ``{seed}`` and ``{set}``.
        columns: names of columns or keys, if they are others than those of ``table``.
        id_pattern: a regular expression that finds in each id what is compared, see `part_of_id`; None: the whole id.

    Raises:
        ValueError: there is no such file, its format is not clear, or it is damaged.
    """
    columns = columns or {}
    id_of = str if id_pattern is None else part_of_id("id_pattern", id_pattern)
    if _are_files(results):
        sources = [(path, name, _read(path, format, columns)) for path, name in _named_files(results, pattern)]
        _take_numbers_as_seeds(sources)
    else:
        sources = [(Path("results"), {}, [*rows_of(records_of(results, "results"), columns)])]
    rows: list[Row] = []
    texts: dict[Path, dict[str, str]] = {}
    lacking: dict[tuple[str | None, int | None, str | None], dict[str, str]] = {}
    for path, name, of_file in sources:
        reference_path = _reference_file(path, references, name)
        if reference_path is not None and reference_path not in texts:
            by_format = format if references is None else None
            texts[reference_path] = _references(reference_path, by_format, columns, id_of)
        start = len(rows)
        for row in of_file:
            # what the file itself says comes first, but not against the pattern
            row.system = composed(name.get("system")) or row.system or composed(name.get("file"))
            row.set = composed(name.get("set")) or row.set
            row.seed = int(name["seed"]) if "seed" in name else row.seed
            row.id = id_of(row.id)
            rows.append(row)
            if reference_path is not None:
                row.reference = texts[reference_path].get(row.id)
                lacking.setdefault((row.system, row.seed, row.set), dict(texts[reference_path])).pop(row.id, None)
        if reference_path is not None and (without := [row.id for row in rows[start:] if row.reference is None]):
            advice = advice_on_ids([{*without}, texts[reference_path]])
            num = count(len(without), "utterance")
            raise ValueError(
                f"references: {reference_path} has no text for {num} of {path}: {shortlist(without)}{advice}"
            )
    # sclite scores what is there, and says nothing of the rest
    rows += [Row(id, text, None, *key) for key, remaining in lacking.items() for id, text in remaining.items()]
    return rows


def _are_files(results: Any) -> bool:
    names = results if isinstance(results, list | tuple) and results else [results]
    return all(name is None or isinstance(name, str | Path) for name in names)


def _named_files(results: Any, pattern: str | Path | None) -> list[tuple[Path, dict[str, str]]]:
    """Return the files of results, and their names: by the parts of the pattern, and of the ``file`` itself.

    Raises:
        ValueError: there are none, or they have no names.
    """
    if results is None:
        if pattern is None:
            raise ValueError("give the files of results: results=FILES, or pattern='exp/{system}/{set}.txt'")
        results = re.sub(r"\{\w+\}", "*", str(pattern))
    patterns = [results] if isinstance(results, str | Path) else results
    matched = [
        path for name in patterns for path in matching_files("results", str(name), "a file, a pattern, or a list")
    ]
    used_beside = {path.with_name(BESIDE[path.name]) for path in matched if path.name in BESIDE}
    files = [path for path in dict.fromkeys(matched) if path not in used_beside]
    named = [_named_by(str(pattern), path) if pattern else {} for path in files]
    if len(files) == 1 or all("system" in name for name in named):
        systems = [path.stem for path in files]
    else:
        systems = _systems_of(files)
    return [
        (path, {"file": name.get("system", system), **name})
        for path, name, system in zip(files, named, systems, strict=True)
    ]


def _named_by(pattern: str, path: Path) -> dict[str, str]:
    """Return what the parts of a path are."""
    if unknown := set(re.findall(r"\{(\w*)\}", pattern)) - {*PLACES}:
        raise ValueError(f"pattern: {{{min(unknown)}}} is unknown; allowed: {{system}}, {{seed}}, {{set}}")
    expression, named = "", set[str]()
    for part in PARTS.split(os.path.normpath(named_path(pattern))):
        if part.startswith("{"):
            name = part[1:-1]
            expression += f"(?P={name})" if name in named else f"(?P<{name}>{r'[0-9]+' if name == 'seed' else '[^/]+'})"
            named.add(name)
        elif part.startswith("["):
            # of which names may consist too
            expression += f"({part.replace('[!', '[^')}|{re.escape(part)})"
        else:
            expression += WILDCARDS.get(part, re.escape(part))
    text = os.path.normpath(path)
    match = re.fullmatch(expression, text)
    if match is None:
        numbers = "; {seed} is a number" if "seed" in named else ""
        raise ValueError(f"pattern: {pattern!r} does not match {str(path)!r}{numbers}")
    shortest = re.fullmatch(expression.replace("+)", "+?)"), text)
    assert shortest is not None
    if match.groupdict() != shortest.groupdict():
        readings = " or ".join(str(reading.groupdict()) for reading in (shortest, match))
        raise ValueError(f"pattern: {str(path)!r} can be read as {readings}; make the pattern more specific")
    others = (text for place, text in enumerate(match.groups(), 1) if place not in match.re.groupindex.values())
    return {**match.groupdict(), "other": "\n".join(others)}


def _take_numbers_as_seeds(files: Sequence[tuple[Path, dict[str, str], Sequence[Row]]]) -> None:
    """Name the seeds, if files of one system have the same utterances and what * and ? match differs in one number."""
    places = zip(*(name.get("other", "").split("\n") for _, name, _ in files), strict=True)
    different = [texts for texts in places if len({*texts}) > 1]
    forms = {re.sub("[0-9]+", "#", text) for texts in different for text in texts}
    if "seed" in files[0][1] or len(different) != 1 or len(forms) != 1 or min(forms).count("#") != 1:
        return
    ids = [(name["file"], name.get("set"), row.set, row.id) for _, name, rows in files for row in rows]
    if len({*ids}) < len(ids):
        for (_, name, _), text in zip(files, different[0], strict=True):
            name["seed"] = re.sub("[^0-9]", "", text)


def _systems_of(files: Sequence[Path]) -> list[str]:
    """Name each file by its own name, or its folder's, whichever are all different."""
    for names in ([path.stem for path in files], [path.parent.name for path in files]):
        if len({*names}) == len(files):
            return names
    raise ValueError(
        f"results: neither the names of the files nor of their folders say which system each is ({shortlist(files)}); "
        "give pattern='exp/{system}/seed{seed}/{set}/*'"
    )


def _reference_file(path: Path, references: str | Path | None, named: Mapping[str, str]) -> Path | None:
    if references is None:
        beside = path.with_name(BESIDE.get(path.name, path.name))
        return beside if beside != path and beside.is_file() else None
    name = str(references)
    for place in re.findall(r"\{(\w+)\}", name):
        value = named.get("file" if place == "system" else place)
        if value is None:
            raise ValueError(f"references: {{{place}}} needs a pattern with {{{place}}}")
        name = name.replace(f"{{{place}}}", value)
    return named_path(name)


def _references(
    path: Path, format: str | None, columns: Mapping[str, str], id_of: Callable[[str], str]
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in _read(path, format, columns, of_references=True):
        text = (row.hypothesis if row.reference is None else row.reference) or ""
        if texts.setdefault(id_of(row.id), text) != text:
            raise ValueError(f"references: {path} has two texts for the utterance {id_of(row.id)!r}")
    return texts


def _read(path: Path, format: str | None, columns: Mapping[str, str], of_references: bool = False) -> list[Row]:
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, given {format!r}")
    if format is None and columns and not of_references:
        try:
            format = recognize(path)
        except ValueError:
            format = "table"
        # a header of other names does not tell of a table
        format = "table" if format == "kaldi" else format
    rows = [*FORMATS[format or recognize(path, of_references)].read(path, columns)]
    if not rows:
        raise ValueError(f"{path} has no utterances")
    return rows


def recognize(path: Path, of_references: bool = False) -> str:
    """Return the format of a file by its contents; of two that both can read it, the one whose usual ending it has.

    Raises:
        ValueError: no format can read it, or several can.
    """
    lines, size = list[str](), 0
    if is_parquet(path):
        return "table"
    if path.suffix in TIMED:
        return "meeteval"
    for line in read_lines(path):
        lines.append(line.rstrip("\r\n"))
        if (size := size + len(line)) > HEAD_CHARACTERS:
            break
    text = "\n".join(lines)
    keys = next(json_objects(path))[1].keys() if JSON.match(text) else ()
    able = [name for name, reader in FORMATS.items() if name != "kaldi" and reader.matches(text, keys)]
    # any text can be Kaldi's: an id, then words
    if (not able and is_kaldi(text, keys)) or (able == ["meeteval"] and is_kaldi(text, keys, most=1)):
        able.append("kaldi")
    usual = [name for name in able if path.suffix in FORMATS[name].suffixes]
    if len(able) > 1 and len(usual) == 1:
        able = usual
    if len(able) != 1:
        problem = f"can be read as {' and '.join(able)}" if able else "has no known format" if text else "is empty"
        choice = "references as id and text" if of_references else f"format=… (one of {', '.join(able or FORMATS)})"
        raise ValueError(f"{path} {problem}; give {choice}")
    return able[0]


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
        self._check("missing", missing, f"not every system has every utterance ({who}){advice}")
        self._check("duplicates", set(self.doubled), "occur twice")
        first = next(iter(self.runs.values()))
        ids = sorted(every - missing - set(self.doubled))
        self._require_references(ids)
        other = {
            id
            for rows in self.runs.values()
            for id in ids
            if rows[id].reference != first[id].reference and not self._is_same(rows[id], first[id])
        }
        self._check("references", other, f"the references differ between systems{self._why(other)}")
        ids = [id for id in ids if id not in other]
        texts = {id: self.normalized(first[id].reference or "").split() for id in ids}
        empty = {id for id in ids if not (first[id].words if first[id].hypothesis is None else texts[id])}
        note = f"the references of {count(len(empty), 'utterance')} are empty: each recognized word is an insertion"
        self._check("empty", empty, "the references are empty", note)
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
        first_rows = [next(iter(rows.values())) for rows in self.runs.values()]
        # nothing would show another order of utterances that only their place in a table names
        if len(first_rows) > 1 and any(row.id == "#1" and row.hypothesis is None for row in first_rows):
            raise ValueError(
                f"{self.name}: errors and words need the column id, so that utterances of two systems are the same"
            )
        for key, rows in self.runs.items():
            if without := [id for id in ids if rows[id].hypothesis is not None and rows[id].reference is None]:
                raise ValueError(
                    f"{self.name}: {_named(key)} has no references of {shortlist(without)}: give references=FILE"
                )
            if any(rows[id].hypothesis is None and rows[id].words is None for id in ids):
                raise ValueError(f"{self.name}: {_named(key)} has neither texts nor numbers of words")

    def _check(self, kind: Allowed, ids: Collection[str], problem: str, note: str = "") -> None:
        """Refuse utterances with a problem, or note what becomes of them, which is mostly that they are left out."""
        num = count(len(ids), "utterance")
        if ids and kind not in self.allow:
            raise ValueError(
                f"{self.name}: {num}, {shortlist(sorted(ids))}: {problem}. Correct the files, or give allow=[{kind}]"
            )
        if ids:
            note = note or f"{num} left out of all systems (allow={kind}): {problem}"
            self.notes.append(f"{self.name}: {note}")


def _named(key: RunKey) -> str:
    system, seed = key
    return system if seed is None else f"{system} seed {seed}"


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


def _how_scored(tables: Tables, changed: Normalization, unit: Unit) -> str:
    rows = (row for runs in tables.values() for table in runs.values() for row in table.values())
    if all(row.hypothesis is None for row in rows):
        return "errors were counted by the files' own scorer, not by werdict"
    how = changed.note or "case and punctuation count (scoring.normalize=none)"
    package = f"werdict with rapidfuzz {version('rapidfuzz')}"
    return f"scored by {package}: errors by {unit}, {how}"
