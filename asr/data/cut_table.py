"""Cuts on disk that are found by number, and whose durations are known without reading them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from lhotse.cut import Cut
from lhotse.serialization import deserialize_item


class CutTable(Sequence[Cut]):
    """The cuts of ``<path>.jsonl``, one per line, with their offsets and durations in ``<path>.npz``.

    A million cuts take 16 MB of memory, and any of them is read in microseconds: neither shuffling nor going on in the
    middle of an epoch has to walk through what comes before.

    Args:
        path: without suffix.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with np.load(path.with_name(f"{path.name}.npz"), allow_pickle=False) as index:
            self.offsets, self.durations = index["offsets"], index["durations"]
        self._file: BinaryIO | None = None

    @classmethod
    def write(cls, path: Path, cuts: Iterable[Cut]) -> None:
        """Write the two files."""
        offsets, durations = [], []
        with path.with_name(f"{path.name}.jsonl").open("wb") as file:
            for cut in cuts:
                offsets.append(file.tell())
                durations.append(cut.duration)
                file.write(json.dumps(cut.to_dict(), ensure_ascii=False).encode() + b"\n")
        np.savez(path.with_name(f"{path.name}.npz"), offsets=np.array(offsets, np.int64), durations=np.array(durations))

    def __getstate__(self) -> dict[str, Any]:
        # every process reads through a file of its own
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
        if self._file is None:
            self._file = self.path.with_name(f"{self.path.name}.jsonl").open("rb")
        self._file.seek(self.offsets[index])
        cut: Cut = deserialize_item(json.loads(self._file.readline()))
        return cut

    def __iter__(self) -> Iterator[Cut]:
        return (self[i] for i in range(len(self)))
