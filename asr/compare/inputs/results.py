"""Reads the results of any toolkit from files as their writers leave them."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from asr.compare.inputs.formats import icefall, kaldi, meeteval, nemo, speechbrain, table, trn, wenet, whisper
from asr.compare.inputs.rows import Row
from asr.evaluation.formatting import shortlist

# a new format is a file in asr/compare/inputs/formats and a row here
FORMATS: Mapping[str, ModuleType] = {
    "table": table,
    "icefall": icefall,
    "nemo": nemo,
    "trn": trn,
    "speechbrain": speechbrain,
    "wenet": wenet,
    "whisper": whisper,
    "meeteval": meeteval,
    "kaldi": kaldi,
}
PLACES = ("system", "seed", "set")
HEAD_BYTES = 2**20  # a line may hold the text of an hour
# hypotheses whose references usually lie beside them
BESIDE = {"hyp.trn": "ref.trn", "hyp.scp": "ref.scp"}


def read_results(
    results: str | Path | Sequence[str | Path] | None = None,
    *,
    pattern: str | None = None,
    format: str | None = None,
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Row]:
    """Read files of results.

    Args:
        results: files, or patterns of files as shells have them; None: those that ``pattern`` matches.
        pattern: says by ``{system}``, ``{seed}`` and ``{set}`` what the parts of a path are; ``*`` is any other part.
        format: one of ``FORMATS``; None: as the contents say.
        references: a file of any of the formats with the reference texts; it may hold ``{set}``.
        columns: names of columns or keys, if they are others than those of ``table``.

    Raises:
        ValueError: there is no such file, its format is not clear, or it is damaged.
    """
    files = _files(results, pattern)
    named = [_named_by(pattern, path) if pattern else {} for path in files]
    systems = [name.get("system") for name in named]
    if None in systems and len(files) > 1:
        systems = _systems_of(files)
    rows: list[Row] = []
    texts: dict[Path, dict[str, str]] = {}
    lacking: dict[tuple[str, int | None, str | None], dict[str, str]] = {}
    for path, name, system in zip(files, named, systems, strict=True):
        reference_path = _reference_file(path, references, name.get("set"))
        if reference_path is not None and reference_path not in texts:
            texts[reference_path] = _references(reference_path, format if references is None else None, columns or {})
        for row in _read(path, format, columns or {}):
            # what the file itself says comes first, but not against the pattern
            row.system = name.get("system") or row.system or system or path.stem
            row.set = name.get("set") or row.set
            row.seed = int(name["seed"]) if "seed" in name else row.seed
            rows.append(row)
            if reference_path is not None:
                row.reference = texts[reference_path].get(row.id)
                if row.reference is None:
                    raise ValueError(f"references: {reference_path} has no text for the utterance {row.id!r} of {path}")
                lacking.setdefault((row.system, row.seed, row.set), dict(texts[reference_path])).pop(row.id, None)
    # sclite scores what is there, and says nothing of the rest
    rows += [Row(id, text, None, *key) for key, remaining in lacking.items() for id, text in remaining.items()]
    return rows


def _files(results: str | Path | Sequence[str | Path] | None, pattern: str | None) -> list[Path]:
    if results is None:
        if pattern is None:
            raise ValueError("give the files of results: results=FILES, or pattern='exp/{system}/{set}.txt'")
        results = re.sub(r"\{\w+\}", "*", pattern)
    files: list[Path] = []
    for file_or_pattern in [results] if isinstance(results, str | Path) else results:
        name = str(Path(file_or_pattern).expanduser())
        paths = (
            [Path(name)] if Path(name).is_file() else [Path(path) for path in sorted(glob.glob(name, recursive=True))]
        )
        paths = [path for path in paths if path.is_file()]
        if not paths:
            raise ValueError(f"results: {name!r} is not a file and matches none")
        files += paths
    used_beside = {path.with_name(BESIDE[path.name]) for path in files if path.name in BESIDE}
    return [path for path in dict.fromkeys(files) if path not in used_beside]


def _named_by(pattern: str, path: Path) -> dict[str, str]:
    """Return what the parts of a path are."""
    if unknown := set(re.findall(r"\{(\w*)\}", pattern)) - {*PLACES}:
        raise ValueError(f"pattern: {{{min(unknown)}}} is unknown; allowed: {{system}}, {{seed}}, {{set}}")
    expression, named = "", set[str]()
    for part in re.split(r"(\{\w+\}|\*+)", pattern):
        if part.startswith("{"):
            name = part[1:-1]
            expression += f"(?P={name})" if name in named else f"(?P<{name}>{r'[0-9]+' if name == 'seed' else '[^/]+'})"
            named.add(name)
        else:
            expression += "[^/]*" if part == "*" else ".*" if part.startswith("*") else re.escape(part)
    match = re.fullmatch(expression, str(path))
    if match is None:
        raise ValueError(f"pattern: {pattern!r} does not match {str(path)!r}")
    shortest = re.fullmatch(expression.replace("+)", "+?)"), str(path))
    assert shortest is not None
    if match.groupdict() != shortest.groupdict():
        readings = " or ".join(str(reading.groupdict()) for reading in (shortest, match))
        raise ValueError(f"pattern: {str(path)!r} can be read as {readings}; make the pattern more specific")
    return match.groupdict()


def _systems_of(files: Sequence[Path]) -> list[str | None]:
    """Name each file by its own name, or its folder's, whichever are all different."""
    for names in ([path.stem for path in files], [path.parent.name for path in files]):
        if len({*names}) == len(files):
            return [*names]
    raise ValueError(
        f"results: neither the names of the files nor of their folders say which system each is ({shortlist(files)}); "
        "give pattern='exp/{system}/seed{seed}/{set}/*'"
    )


def _reference_file(path: Path, references: str | Path | None, set_name: str | None) -> Path | None:
    if references is not None:
        if "{set}" in str(references) and set_name is None:
            raise ValueError("references: {set} needs a pattern with {set}")
        return Path(str(references).replace("{set}", set_name or "")).expanduser()
    beside = path.with_name(BESIDE.get(path.name, path.name))
    return beside if beside != path and beside.is_file() else None


def _references(path: Path, format: str | None, columns: Mapping[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in _read(path, format, columns, of_references=True):
        text = row.hypothesis if row.reference is None else row.reference
        if texts.setdefault(row.id, text or "") != (text or ""):
            raise ValueError(f"references: {path} has two texts for the utterance {row.id!r}")
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
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    text = head.decode("utf-8-sig", "replace")
    if len(head) == HEAD_BYTES and "\n" in text:
        text = text[: text.rindex("\n") + 1]
    able = [name for name, reader in FORMATS.items() if name != "kaldi" and reader.matches(text)]
    # any text can be Kaldi's: an id, then words
    if FORMATS["kaldi"].matches(text) and (not able or "meeteval" in able):
        able.append("kaldi")
    usual = [name for name in able if path.suffix in FORMATS[name].SUFFIXES]
    if len(able) > 1 and len(usual) == 1:
        able = usual
    if len(able) != 1:
        problem = f"can be read as {' and '.join(able)}" if able else "has no known format"
        choice = "references as id and text" if of_references else f"format=… (one of {', '.join(able or FORMATS)})"
        raise ValueError(f"{path} {problem}; give {choice}")
    return able[0]
