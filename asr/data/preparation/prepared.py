"""Prepared data on disk: cuts per split, a tokenizer, feature statistics."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from asr.data.features import MOST_FEATURE
from asr.data.manifests.corpus import SPLIT, Dropped, write_dropped
from asr.data.preparation.ctc_lengths import CtcLengths, OutputFrames
from asr.data.preparation.file_digests import describe_file, refuse_changed
from asr.data.preparation.indexed_cut_set import IndexedCutSet
from asr.plain_data import check_plain, read_json
from asr.run_folder import DATA_RECORD
from asr.safe_io import write_whole
from asr.text.tokenizer import Tokenizer, tokenizer_from_state

INDEX = "prepared.json"
DROPPED, TOO_SHORT = "dropped.tsv", "too_short.tsv"
COUNTS = ("num_utterances", "hours", "num_speakers", "num_dropped")


class DamagedData(ValueError):
    """Prepared data whose files have changed, are missing or are malformed."""


@dataclass(frozen=True)
class PreparedData:
    """The contents of one folder of prepared data, possibly without the cuts that are too short for an encoder.

    Attributes:
        folder: where the data lie.
        tokenizer: trained on the training transcripts.
        mean: of each feature over the training data.
        std: standard deviation of each feature.
        splits: by name: num_utterances, hours, num_speakers, num_dropped.
        notes: sentences to show with all results.
        corpora: number of training cuts of each corpus of a mixture, in the order of the cuts; empty for one corpus.
        shards: size in bytes of each tar that holds audio.
        masked: numbers of the cuts that are not used, by split.
        too_short: the same cuts, with reasons.
    """

    folder: Path
    tokenizer: Tokenizer
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: dict[str, dict[str, float]]
    notes: tuple[str, ...]
    corpora: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)
    masked: dict[str, list[int]] = field(default_factory=dict)
    too_short: tuple[Dropped, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Name that changes with the source, the options or the text of the data."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def names(self, kind: str) -> list[str]:
        """Return the splits whose name starts with ``train``, ``dev`` or ``test``, in order."""
        return sorted(name for name in self.splits if name.startswith(kind))

    def cuts(self, split: str) -> IndexedCutSet:
        """Return the cuts of a split, which are read on access.

        Raises:
            ValueError: the split does not exist, or its files are damaged.
        """
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r} in {self.folder}; there are {', '.join(self.splits)}")
        cuts = IndexedCutSet(self.folder / f"cuts_{split}")
        masked = self.masked.get(split, [])
        expected = self.splits[split]["num_utterances"] + len(masked)
        if len(cuts) != expected:
            raise DamagedData(f"{cuts.path}.npz holds {len(cuts)} cuts, {INDEX} says {expected}")
        return cuts.without(masked) if masked else cuts

    def ctc_lengths(self, split: str) -> CtcLengths:
        """Return the lengths of the cuts of a split.

        Raises:
            ValueError: their file is damaged.
        """
        masked = self.masked.get(split, [])
        num_cuts = int(self.splits[split]["num_utterances"]) + len(masked)
        return CtcLengths.load(self.folder / f"ctc_lengths_{split}.npz", num_cuts).without(masked)

    def for_encoder(self, output_frames: OutputFrames) -> PreparedData:
        """Return the data without the training and dev cuts that have no CTC alignment; test sets stay whole.

        Args:
            output_frames: (N,) frames of features → (N,) frames of encodings.

        Raises:
            ValueError: a split is left without cuts.
        """
        assert not self.masked, "the data were masked for another encoder"
        splits, masked, items = dict(self.splits), {}, []
        # not test: a system has to answer for every utterance of a test set
        for name in (*self.names("train"), *self.names("dev")):
            reasons = self.ctc_lengths(name).too_short(output_frames)
            if not reasons:
                continue
            cuts, masked[name] = self.cuts(name), list(reasons)
            items += [Dropped(name, cuts[number].id, reason) for number, reason in reasons.items()]
            left = cuts.without(masked[name])
            if not len(left):
                first = [f"{item.item}: {item.reason}" for item in items if item.split == name][:5]
                raise ValueError(
                    f"nothing is left of split {name!r}; the first reasons: {first}. Choose an encoder that leaves "
                    "more frames, or a tokenizer with longer tokens."
                )
            changed = {"num_utterances": len(left), "hours": round(float(left.durations.sum()) / 3600, 4)}
            splits[name] = {**splits[name], **changed, "num_dropped": splits[name]["num_dropped"] + len(reasons)}
        corpora = _without(self.corpora, masked.get("train", [])) if self.corpora else {}
        return replace(self, splits=splits, corpora=corpora, masked=masked, too_short=tuple(items))

    def check_shards(self) -> None:
        """Compare the sizes of shards with those when the data were prepared; their content is checked when it is read.

        Raises:
            ValueError: one is missing, or has another size.
        """
        for path, num_bytes in self.shards.items():
            try:
                there = f"has {size} bytes" if (size := os.stat(path).st_size) != num_bytes else ""
            except OSError as error:
                there = f"cannot be read ({error.strerror})"
            if there:
                raise ValueError(
                    f"the shard {path} {there}; it had {num_bytes} bytes when the data were prepared. Restore it; or "
                    f"remove {self.folder}, and the shard if it is there, and prepare the data again"
                )

    def record(self, run_dir: Path) -> None:
        """Write to a run's folder which data it reads."""
        write_whole(run_dir / DATA_RECORD, self.fingerprint)

    def list_too_short(self, run_dir: Path) -> None:
        """Write ``too_short.tsv`` to a run's folder, if there are cuts that are too short for its encoder."""
        if self.too_short:
            write_dropped(run_dir / TOO_SHORT, self.too_short)

    def save(self) -> None:
        """Write all but the cuts and their lengths; the index comes last and marks the folder complete."""
        index: dict[str, Any] = {
            "tokenizer": self.tokenizer.state(),
            "mean": self.mean,
            "std": self.std,
            "splits": self.splits,
            "notes": self.notes,
            "corpora": self.corpora,
            "shards": self.shards,
            "files": {path.name: describe_file(path) for path in _files(self.folder, self.splits)},
        }
        index["sha256"] = _digest(index)
        write_whole(self.folder / INDEX, json.dumps(index, ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, folder: Path) -> PreparedData:
        """Read a complete folder, and compare its files with their digests.

        Raises:
            DamagedData: something is missing, changed or malformed.
        """
        try:
            index = read_json(folder / INDEX)
            prepared = cls(folder, **_checked(index))
            for path in _files(folder, prepared.splits):
                refuse_changed(path, index["files"].get(path.name), INDEX)
            if index.get("sha256") != _digest(index):
                raise ValueError(f"{INDEX} is not as it was written: its SHA-256 differs")
        except ValueError as error:
            raise DamagedData(f"the prepared data in {folder} cannot be used: {error}") from error
        return prepared


def _files(folder: Path, splits: Mapping[str, Any]) -> list[Path]:
    kinds = ("cuts_{}.jsonl", "cuts_{}.npz", "ctc_lengths_{}.npz")
    return [folder / name for name in (*(kind.format(split) for split in splits for kind in kinds), DROPPED)]


def _without(corpora: Mapping[str, int], numbers: Sequence[int]) -> dict[str, int]:
    """Return the sizes of corpora that stand one after the other, without the cuts of some numbers."""
    of_corpus = np.searchsorted(np.cumsum(list(corpora.values())), numbers, side="right")
    left_out = np.bincount(of_corpus, minlength=len(corpora))
    if empty := [name for name, gone in zip(corpora, left_out, strict=True) if gone == corpora[name]]:
        raise ValueError(
            f"data.sources: all utterances of {', '.join(empty)} are too short for this encoder; leave it out, or "
            "choose an encoder that leaves more frames"
        )
    return {name: corpora[name] - int(gone) for name, gone in zip(corpora, left_out, strict=True)}


def _digest(index: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything else in an index."""
    written = {key: value for key, value in index.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def _checked(index: Any) -> dict[str, Any]:
    """Return the fields of an index, each of the form that `PreparedData` expects."""
    check_plain(index, INDEX)
    if not isinstance(index, Mapping):
        raise ValueError(f"{INDEX} is no mapping")
    for name in ("tokenizer", "splits", "files"):
        if not isinstance(index.get(name), Mapping):
            raise ValueError(f"{name!r} of {INDEX} is {str(index.get(name))[:60]!r}, not a mapping")
    for name in ("mean", "std"):
        values = index.get(name)
        if not isinstance(values, list) or not values or not all(map(_is_finite, values)):
            raise ValueError(f"{name!r} of {INDEX} is {str(values)[:60]!r}, not a list of finite numbers")
    mean, std = tuple(index["mean"]), tuple(index["std"])
    if len(mean) != len(std) or min(std) < 1 / MOST_FEATURE or max(map(abs, mean + std)) > MOST_FEATURE:
        raise ValueError(f"'mean' and 'std' of {INDEX} differ in length, or hold values that no features have")
    notes = index.get("notes")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise ValueError(f"'notes' of {INDEX} is {str(notes)[:60]!r}, not a list of sentences")
    try:
        tokenizer = tokenizer_from_state(index["tokenizer"])
    # a foreign state may make it raise anything
    except Exception as error:
        raise ValueError(f"'tokenizer' of {INDEX}: {error or type(error).__name__}") from error
    splits = {name: _counts(name, split) for name, split in index["splits"].items()}
    found = {"tokenizer": tokenizer, "mean": mean, "std": std, "splits": splits, "notes": tuple(notes)}
    return found | {"corpora": _corpora(index.get("corpora", {}), splits), "shards": _shards(index.get("shards", {}))}


def _shards(sizes: Any) -> dict[str, int]:
    if not isinstance(sizes, Mapping) or not all(
        isinstance(path, str) and os.path.isabs(path) and "\0" not in path and type(size) is int
        for path, size in sizes.items()
    ):
        raise ValueError(f"'shards' of {INDEX} is {str(sizes)[:60]!r}, not a size for each absolute path")
    return dict(sizes)


def _corpora(sizes: Any, splits: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    if not isinstance(sizes, Mapping) or not all(type(size) is int and size > 0 for size in sizes.values()):
        raise ValueError(f"'corpora' of {INDEX} is {str(sizes)[:60]!r}, not a size for each corpus")
    if sizes and sum(sizes.values()) != splits.get("train", {}).get("num_utterances"):
        raise ValueError(f"'corpora' of {INDEX} do not have as many utterances as split 'train'")
    return dict(sizes)


def _counts(name: str, split: Any) -> dict[str, float]:
    if not SPLIT.fullmatch(name):
        raise ValueError(f"{INDEX} has a split {name[:100]!r}; names begin with train, dev or test and have no slash")
    if not isinstance(split, Mapping) or not all(_is_finite(split.get(key)) and split[key] >= 0 for key in COUNTS):
        raise ValueError(f"split {name!r} of {INDEX} is {str(split)[:60]!r}, not the counts {', '.join(COUNTS)}")
    return dict(split)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
