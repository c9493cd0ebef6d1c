"""Cuts on disk that are found by number, and whose durations are known without reading them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from lhotse.cut import Cut
from lhotse.serialization import deserialize_item

from asr.data.manifests.numpy_files import load_npz
from asr.data.preparation.cut_json import MAX_LINE_BYTES, plain_cut
from asr.safe_io import check_regular_file


class CutTable(Sequence[Cut]):
    """The cuts of ``<path>.jsonl``, one per line, with their offsets and durations in ``<path>.npz``.

    A million cuts take 16 MB of memory, and any of them is read in microseconds: neither shuffling nor going on in the
    middle of an epoch has to walk through what comes before. Each is checked when it is read, before lhotse sees it.

    Args:
        path: without suffix.

    Raises:
        ValueError: the two files are missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.with_name(f"{path.name}.jsonl")
        check_regular_file(self.lines, 2**50)
        index = load_npz(path.with_name(f"{path.name}.npz"), {"offsets": np.integer, "durations": np.floating})
        self.offsets, self.durations = index["offsets"], index["durations"]
        self._check_index(self.lines.stat().st_size)
        self._file: BinaryIO | None = None

    def _check_index(self, size: int) -> None:
        ordered = self.offsets.ndim == 1 and (np.diff(self.offsets) > 0).all()
        inside = ordered and (len(self.offsets) == 0 or (self.offsets[0] == 0 and self.offsets[-1] < size))
        usable = (
            self.durations.shape == self.offsets.shape and (np.isfinite(self.durations) & (self.durations > 0)).all()
        )
        if not inside or not usable:
            raise ValueError(f"{self.path}.npz does not fit {self.lines.name}, or its durations are not positive")

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

    def check(self) -> None:
        """Look at every cut, in microseconds each.

        Raises:
            ValueError: one of them is refused.
        """
        for number in range(len(self)):
            self._plain(number)

    def _plain(self, number: int) -> dict[str, Any]:
        if self._file is None:
            self._file = self.lines.open("rb")
        self._file.seek(self.offsets[number])
        # without its number: one may count from the end
        return plain_cut(self._file.readline(MAX_LINE_BYTES + 1), f"{self.lines}, byte {self.offsets[number]}")

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
        data = self._plain(index)
        try:
            cut: Cut = deserialize_item(data)
        # what a stranger's data make lhotse raise can be anything
        except Exception as error:
            raise ValueError(f"{self.lines}, byte {self.offsets[index]}: this is no cut: {error!r}") from error
        return cut

    def __iter__(self) -> Iterator[Cut]:
        return (self[i] for i in range(len(self)))
