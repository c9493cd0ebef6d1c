"""Cuts on disk, found by number; their durations are known without reading them."""

from __future__ import annotations

import copy
import json
import os
from array import array
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from lhotse.cut import Cut
from lhotse.serialization import deserialize_item

from asr.data.manifests.feature_storage import place_of
from asr.data.preparation.portable_paths import with_absolute_paths


class IndexedCutSet(Sequence[Cut]):
    """The cuts of ``<path>.jsonl``, one per line, with their offsets and durations in ``<path>.npz``.

    lhotse's lazy CutSet reads from the beginning, so that shuffling holds all cuts in memory and resuming skips one by
    one. Here a million cuts take 16 MB, and any of them is read in microseconds.

    Args:
        path: without suffix.
    """

    def __init__(self, path: Path) -> None:
        self.lines = path.with_name(f"{path.name}.jsonl")
        with np.load(path.with_name(f"{path.name}.npz")) as index:
            self.offsets, self.durations = index["offsets"], index["durations"]
        self._file: BinaryIO | None = None
        self._opened_by = 0  # process id

    @staticmethod
    def write(path: Path, lines: Iterable[tuple[bytes, float]]) -> None:
        """Write the two files from lines of cuts, with their ends, and durations in seconds."""
        # eight bytes for each of what may be millions
        offsets, durations = array("q"), array("d")
        with path.with_name(f"{path.name}.jsonl").open("wb") as file:
            for line, duration_s in lines:
                offsets.append(file.tell())
                durations.append(duration_s)
                file.write(line)
        np.savez(path.with_name(f"{path.name}.npz"), offsets=np.array(offsets, np.int64), durations=np.array(durations))

    def without(self, numbers: Sequence[int]) -> IndexedCutSet:
        """Return the same cuts except those of some numbers."""
        others = copy.copy(self)
        others.offsets, others.durations = (np.delete(each, numbers) for each in (self.offsets, self.durations))
        return others

    def __getstate__(self) -> dict[str, Any]:
        # copies would share the position of the file
        return {**vars(self), "_file": None}

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> Cut:  # type: ignore[override]  # no slices
        return self.select([index])[0]

    def select(self, numbers: Iterable[int]) -> CutLines:
        """Return the cuts of some numbers, in their order."""
        # a forked worker would share the position of a file that its parent has opened
        if self._file is None or self._opened_by != os.getpid():
            self._file, self._opened_by = self.lines.open("rb"), os.getpid()
        lines = []
        for number in numbers:
            self._file.seek(self.offsets[number])
            lines.append(self._file.readline())
        return CutLines(lines, self.lines.parent)


class CutLines(Sequence[Cut]):
    """Cuts as lines of a file in ``folder``, parsed when they are used: by a worker, not by the process that trains."""

    def __init__(self, lines: list[bytes], folder: Path) -> None:
        self.lines, self.folder = lines, folder

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Cut:  # type: ignore[override]  # no slices
        return parse_cut(self.lines[index], self.folder)


class FormerCuts:
    """Prepared cuts of an earlier state of a corpus, found by id if their audio, or their features, are unchanged.

    Args:
        folder: of the prepared data.
        splits: of the corpus.
        unchanged: paths of files that are as they were.
    """

    def __init__(self, folder: Path = Path(), splits: Iterable[str] = (), unchanged: Collection[str] = ()) -> None:
        self.cuts = {split: IndexedCutSet(folder / f"cuts_{split}") for split in splits}
        self.unchanged = frozenset(unchanged)
        self.numbers: dict[tuple[str, str], int] = {}
        for split, cuts in self.cuts.items():
            with cuts.lines.open("rb") as lines:
                self.numbers |= {(split, json.loads(line)["id"]): number for number, line in enumerate(lines)}

    def find(self, split: str, cut: Cut) -> Cut | None:
        """Return the prepared cut of the same part of the same files."""
        number = self.numbers.get((split, cut.id))
        if number is None or not self.unchanged.issuperset(_files(cut)):
            return None
        former = self.cuts[split][number]
        is_same = (former.start, former.duration, _files(former)) == (cut.start, cut.duration, _files(cut))
        is_whole = not former.has_features or os.path.isfile(place_of(former.features))
        return former if is_same and is_whole else None


def _files(cut: Cut) -> list[str]:
    return [source.source for source in cut.recording.sources] if cut.has_recording else [place_of(cut.features)]


def parse_cut(line: bytes, folder: Path) -> Cut:
    """Return the cut of a line of a file in ``folder``."""
    cut: Cut = deserialize_item(with_absolute_paths(json.loads(line), folder))
    return cut
