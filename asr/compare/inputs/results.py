"""Reads the results of any toolkit from files as their writers leave them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.compare.inputs.formats import FORMATS, TIMED, is_kaldi, is_parquet, records_of, rows_of
from asr.compare.inputs.rows import Row, advice_on_ids, part_of_id
from asr.evaluation.formatting import count, shortlist
from asr.safe_io import named_path
from asr.text_files import composed, json_objects, matching_files, read_lines

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
        sources = [(path, name, [*_read(path, format, columns)]) for path, name in _named_files(results, pattern)]
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


def _read(path: Path, format: str | None, columns: Mapping[str, str], of_references: bool = False) -> Iterator[Row]:
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, given {format!r}")
    if format is None and columns and not of_references:
        try:
            format = recognize(path)
        except ValueError:
            format = "table"
        # a header of other names does not tell of a table
        format = "table" if format == "kaldi" else format
    reader = FORMATS[format or recognize(path, of_references)]
    rows: Iterable[Row] = reader.read(path, columns)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise ValueError(f"{path} has no utterances")


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
