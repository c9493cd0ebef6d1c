"""Cuts on disk, found by number; their durations are known without reading them."""

from __future__ import annotations

import copy
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from lhotse.cut import Cut
from lhotse.serialization import deserialize_item

from asr.data.manifests.plain_items import to_line
from asr.safe_io import check_regular_file


class IndexedCutSet(Sequence[Cut]):
    """The cuts of ``<path>.jsonl``, one per line, with their offsets and durations in ``<path>.npz``.

    lhotse's lazy CutSet reads from the beginning, so that shuffling holds all cuts in memory and resuming skips one by
    one. Here a million cuts take 16 MB, and any of them is read in microseconds; each is checked before lhotse sees it.

    Args:
        path: without suffix.

    Raises:
        ValueError: the two files are missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.with_name(f"{path.name}.jsonl")
        check_regular_file(self.lines, 2**50)
        with np.load(path.with_name(f"{path.name}.npz")) as index:
            self.offsets, self.durations = index["offsets"], index["durations"]
        self._check_index(self.lines.stat().st_size)
        self._file: BinaryIO | None = None
        self._opened_by = 0  # process id

    def _check_index(self, size: int) -> None:
        ordered = self.offsets.ndim == 1 and (np.diff(self.offsets) > 0).all()
        inside = ordered and (len(self.offsets) == 0 or (self.offsets[0] == 0 and self.offsets[-1] < size))
        paired = self.durations.shape == self.offsets.shape
        if not inside or not paired or not (np.isfinite(self.durations) & (self.durations > 0)).all():
            raise ValueError(f"{self.path}.npz does not fit {self.lines.name}, or its durations are not positive")

    @classmethod
    def write(cls, path: Path, cuts: Iterable[Cut]) -> None:
        """Write the two files."""
        cls.write_lines(path, ((to_line(cut).encode(), cut.duration) for cut in cuts))

    @staticmethod
    def write_lines(path: Path, lines: Iterable[tuple[bytes, float]]) -> None:
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

    def check(self) -> None:
        """Check every cut, in microseconds each.

        Raises:
            ValueError: one of them is refused.
        """
        for number in range(len(self)):
            self._parse(number)

    def _parse(self, number: int) -> dict[str, Any]:
        # a forked worker would share the position of a file that its parent has opened
        if self._file is None or self._opened_by != os.getpid():
            self._file, self._opened_by = self.lines.open("rb"), os.getpid()
        self._file.seek(self.offsets[number])
        # the message has the offset, because a negative number counts from the end
        where = f"{self.lines}, byte {self.offsets[number]}"
        data: dict[str, Any] = json.loads(self._file.readline())
        # batches are planned by the index alone
        if data["duration"] != self.durations[number]:
            raise ValueError(f"{where}: the cut lasts {data['duration']} s, its index says {self.durations[number]} s")
        return data

    def __getstate__(self) -> dict[str, Any]:
        # nor do copies share a position
        return {**vars(self), "_file": None}

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Cut: ...

    @overload
    def __getitem__(self, index: slice) -> list[Cut]: ...

    def __getitem__(self, index: int | slice) -> Cut | list[Cut]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        data = self._parse(index)
        try:
            cut: Cut = deserialize_item(data)
        # lhotse may raise anything on data that are valid JSON but no cut
        except Exception as error:
            raise ValueError(f"{self.lines}, byte {self.offsets[index]}: this is no cut: {error!r}") from error
        return cut

    def __iter__(self) -> Iterator[Cut]:
        return (self[i] for i in range(len(self)))
