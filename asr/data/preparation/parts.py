"""What is done with a chunk of a corpus, in a file of its own, so that it is not done again after a kill."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lhotse.cut import Cut
from lhotse.serialization import deserialize_item

from asr.data.manifests.corpus import Dropped
from asr.data.manifests.plain_items import to_line
from asr.safe_io import TEMPORARY, naming

MAX_HEADER_BYTES = 2**26  # it lists the dropped items of a chunk
FIELDS = {"made_of": str, "num_cuts": int, "duration_s": int | float, "dropped": list, "final": bool, "sha256": str}


@dataclass(frozen=True)
class Part:
    """The cuts of a chunk that can be used, and what was dropped of it.

    Attributes:
        path: a line of JSON with what follows, and a line for each cut.
        split: that the cuts are of.
        made_of: digest of all that the part depends on.
        num_cuts: number of cuts.
        duration_s: of the whole chunk.
        dropped: items of the chunk that are not used.
    """

    path: Path
    split: str
    made_of: str
    num_cuts: int
    duration_s: float
    dropped: tuple[Dropped, ...]

    @classmethod
    def write(
        cls,
        path: Path,
        split: str,
        made_of: str,
        cuts: Iterable[Cut],
        dropped: Iterable[Dropped],
        duration_s: float,
        final: bool = True,
    ) -> Part:
        """Write a part, which appears complete or not at all.

        Args:
            path: of the file.
            split: that the cuts are of.
            made_of: digest of all that the part depends on.
            cuts: that can be used.
            dropped: items that cannot.
            duration_s: of the whole chunk.
            final: False: a repaired file would change it, so that a later call makes the part again.
        """
        lines = [to_line(cut).encode() for cut in cuts]
        listed = tuple(dropped)
        header = {
            "made_of": made_of,
            "num_cuts": len(lines),
            "duration_s": duration_s,
            "dropped": [(item.item, item.reason) for item in listed],
            "final": final,
            "sha256": _digest(lines),
        }
        temporary = path.with_name(path.name + TEMPORARY)
        with naming(path), temporary.open("wb") as file:
            # file names need not be UTF-8; JSON escapes what is no character
            file.write(json.dumps(header).encode() + b"\n")
            file.writelines(lines)
        # no fsync: what a power cut leaves does not fit its digest
        os.replace(temporary, path)
        return cls(path, split, made_of, len(lines), duration_s, listed)

    @classmethod
    def found(cls, path: Path, split: str, made_of: str) -> Part | None:
        """Return the part of an earlier call, if it is whole, and made of the same."""
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                header = json.loads(file.readline(MAX_HEADER_BYTES))
                if not _is_header(header) or header["made_of"] != made_of or not header["final"]:
                    return None
                if _digest(file) != header["sha256"]:
                    return None
            dropped = tuple(Dropped(split, str(item), str(reason)) for item, reason in header["dropped"])
        except (ValueError, TypeError, RecursionError):
            return None
        return cls(path, split, made_of, header["num_cuts"], float(header["duration_s"]), dropped)

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield the line of each cut, with its end, and its content."""
        with self.path.open("rb") as file:
            file.readline(MAX_HEADER_BYTES)
            for line in file:
                yield line, json.loads(line)


def cut_of(line: bytes, where: str) -> Cut:
    """Return the cut of a line, checked first as any line of cuts."""
    cut: Cut = deserialize_item(json.loads(line))
    return cut


def _digest(lines: Iterable[bytes]) -> str:
    content = hashlib.sha256()
    for line in lines:
        content.update(line)
    return content.hexdigest()


def _is_header(header: Any) -> bool:
    return isinstance(header, Mapping) and all(isinstance(header.get(name), kind) for name, kind in FIELDS.items())


@dataclass
class SplitParts:
    """The parts of a split.

    Attributes:
        name: of the split.
        parts: in order.
        earlier: items that were dropped before the parts were made.
        left_out: ids of cuts of the parts that were found to be unreadable since, and why.
    """

    name: str
    parts: list[Part]
    earlier: list[Dropped] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(part.num_cuts for part in self.parts) - len(self.left_out)

    @property
    def dropped(self) -> list[Dropped]:
        """Items that are not used, in the order in which that was found."""
        later = [unreadable(self.name, name, why) for name, why in self.left_out.items()]
        return [*self.earlier, *(item for part in self.parts for item in part.dropped), *later]

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield line and content of each cut that is used."""
        for part in self.parts:
            yield from self.lines_of(part)

    def lines_of(self, part: Part) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield line and content of each cut of a part that is used."""
        return (found for found in part.lines() if found[1]["id"] not in self.left_out)

    def texts(self) -> Iterator[str]:
        """Yield the transcripts."""
        return (text_of_cut(data) for _, data in self.lines())


def text_of_cut(data: Mapping[str, Any]) -> str:
    """Return the transcript of a cut that is given as plain data."""
    return str(data["supervisions"][0]["text"])


def unreadable(split: str, cut_id: str, why: str, what: str = "audio") -> Dropped:
    """Return the entry of a cut whose audio, or features, seemed good when they were checked, but cannot be read."""
    return Dropped(split, cut_id, f"unreadable {what}: {why}")
