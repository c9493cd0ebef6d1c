"""Data that is ready to be trained on: cuts per split, a tokenizer, feature statistics."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.data.manifests.corpus import SPLIT
from asr.data.preparation.indexed_cut_set import CutTable
from asr.safe_io import check_plain, read_json, write_whole
from asr.text.tokenizer import Tokenizer, tokenizer_from_state

INDEX = "prepared.json"
DROPPED = "dropped.tsv"
MAX_INDEX_BYTES = 2**26  # a vocabulary of sentencepiece is part of it
COUNTS = ("num_utterances", "hours", "num_speakers", "num_dropped")


class DamagedData(ValueError):
    """Prepared data whose files are not those that were written, or that are not what they must be."""


@dataclass(frozen=True)
class PreparedData:
    """What one folder of prepared data holds.

    Attributes:
        folder: where it lies.
        tokenizer: trained on the training transcripts.
        mean: of each feature over the training data.
        std: likewise, the standard deviation.
        splits: by name: num_utterances, hours, num_speakers, num_dropped.
        notes: sentences that must stand wherever results are shown.
    """

    folder: Path
    tokenizer: Tokenizer
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: dict[str, dict[str, float]]
    notes: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Name that changes with the source, the options or the text of the data."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def names(self, kind: str) -> list[str]:
        """Return the splits whose name starts with ``train``, ``dev`` or ``test``, in order."""
        return sorted(name for name in self.splits if name.startswith(kind))

    def cuts(self, split: str) -> CutTable:
        """Return the cuts of a split, read when they are asked for.

        Raises:
            ValueError: there is no such split, or its files are damaged.
        """
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r} in {self.folder}; there are {', '.join(self.splits)}")
        table = CutTable(self.folder / f"cuts_{split}")
        if len(table) != self.splits[split]["num_utterances"]:
            told = self.splits[split]["num_utterances"]
            raise DamagedData(f"{table.path}.npz holds {len(table)} cuts, {INDEX} says {told}")
        return table

    def save(self) -> None:
        """Write everything but the cuts to the folder; the index comes last and marks it complete."""
        index: dict[str, Any] = {
            "tokenizer": self.tokenizer.state(),
            "mean": self.mean,
            "std": self.std,
            "splits": self.splits,
            "notes": self.notes,
            "files": {path.name: _describe(path) for path in _files(self.folder, self.splits)},
        }
        write_whole(self.folder / INDEX, json.dumps(index, ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, folder: Path) -> PreparedData:
        """Read a complete folder, and compare its files with what was written.

        Raises:
            DamagedData: something is missing, changed or malformed.
        """
        try:
            index = read_json(folder / INDEX, MAX_INDEX_BYTES)
            prepared = cls(folder, **_checked(index))
            for path in _files(folder, prepared.splits):
                _refuse_changed(path, index["files"].get(path.name))
        except ValueError as error:
            raise DamagedData(f"the prepared data in {folder} cannot be used: {error}") from error
        return prepared


def _files(folder: Path, splits: Mapping[str, Any]) -> list[Path]:
    names = [f"cuts_{split}.{suffix}" for split in splits for suffix in ("jsonl", "npz")]
    return [folder / name for name in (*names, DROPPED)]


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _refuse_changed(path: Path, written: Any) -> None:
    if not isinstance(written, Mapping):
        raise ValueError(f"{INDEX} holds no digest of {path.name}")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing, or is no file")
    size = path.stat().st_size
    if size != written.get("bytes"):
        raise ValueError(f"{path.name} has {size} bytes, {written.get('bytes')!r:.20} were written")
    if _describe(path)["sha256"] != written.get("sha256"):
        raise ValueError(f"{path.name} is not as it was written: its SHA-256 differs")


def _checked(index: Any) -> dict[str, Any]:
    """Return the fields of an index, each of the form that `PreparedData` expects."""
    check_plain(index, INDEX)
    if not isinstance(index, Mapping):
        raise ValueError(f"{INDEX} is no mapping")
    for name in ("tokenizer", "splits", "files"):
        if not isinstance(index.get(name), Mapping):
            raise ValueError(f"{name!r} of {INDEX} is {str(index.get(name))[:60]!r}, not a mapping")
    mean, std = (_numbers(index, name) for name in ("mean", "std"))
    if len(mean) != len(std) or min(std) <= 0:
        raise ValueError(f"'mean' and 'std' of {INDEX} are not as many, or a deviation is not positive")
    notes = index.get("notes")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise ValueError(f"'notes' of {INDEX} is {str(notes)[:60]!r}, not a list of sentences")
    return {
        "tokenizer": _tokenizer(index["tokenizer"]),
        "mean": mean,
        "std": std,
        "splits": {name: _counts(name, split) for name, split in index["splits"].items()},
        "notes": tuple(notes),
    }


def _tokenizer(state: Mapping[str, Any]) -> Tokenizer:
    try:
        return tokenizer_from_state(state)
    # what a stranger's state makes it raise can be anything
    except Exception as error:
        raise ValueError(f"'tokenizer' of {INDEX}: {error or type(error).__name__}") from error


def _numbers(index: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = index.get(name)
    if not isinstance(values, list) or not values or not all(_is_finite(value) for value in values):
        raise ValueError(f"{name!r} of {INDEX} is {str(values)[:60]!r}, not a list of finite numbers")
    return tuple(values)


def _counts(name: str, split: Any) -> dict[str, float]:
    if not SPLIT.fullmatch(name):
        raise ValueError(f"{INDEX} has a split {name[:100]!r}; names begin with train, dev or test and have no slash")
    if not isinstance(split, Mapping) or not all(_is_finite(split.get(key)) and split[key] >= 0 for key in COUNTS):
        raise ValueError(f"split {name!r} of {INDEX} is {str(split)[:60]!r}, not the counts {', '.join(COUNTS)}")
    return dict(split)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
