"""Data that is ready to be trained on: cuts per split, a tokenizer, feature statistics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.data.cut_table import CutTable
from asr.text.tokenizer import Tokenizer, tokenizer_from_state

INDEX = "prepared.json"


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
        """Return the cuts of a split, read when they are asked for."""
        if split not in self.splits:
            raise ValueError(f"there is no split {split!r} in {self.folder}; there are {', '.join(self.splits)}")
        return CutTable(self.folder / f"cuts_{split}")

    def save(self) -> None:
        """Write everything but the cuts to the folder; the index comes last and marks it complete."""
        index: dict[str, Any] = {
            "tokenizer": self.tokenizer.state(),
            "mean": self.mean,
            "std": self.std,
            "splits": self.splits,
            "notes": self.notes,
        }
        (self.folder / INDEX).write_text(json.dumps(index, ensure_ascii=False, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> PreparedData:
        """Read a complete folder."""
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return cls(
            folder=folder,
            tokenizer=tokenizer_from_state(index["tokenizer"]),
            mean=tuple(index["mean"]),
            std=tuple(index["std"]),
            splits=index["splits"],
            notes=tuple(index["notes"]),
        )
