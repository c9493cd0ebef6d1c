"""Reads which learning rates a sweep has tried, and what they gave, for a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from asr.plain_data import read_json

FILE = "tuning.json"
LR = "optimizer.lr"


@dataclass(frozen=True)
class Tuning:
    """What one study tried for one system.

    Attributes:
        system: its name in the comparison.
        trials: learning rate and WER on the development sets; a WER is infinite if the trial gave none.
        chosen: learning rate of the best trial.
        at_edge: whether the smallest or the largest rate was the best, or as good.
    """

    system: str
    trials: tuple[tuple[float, float], ...]
    chosen: float
    at_edge: bool


def read_tuning(folder: Path) -> list[Tuning]:
    """Return what the studies of a sweep tried; empty if it has not tuned."""
    path = folder / FILE
    return [
        Tuning(
            name,
            tuple(
                (trial["settings"][LR], math.inf if trial["wer"] is None else trial["wer"]) for trial in tuned["trials"]
            ),
            tuned["chosen"][LR],
            tuned["at_edge"],
        )
        for study in (read_json(path) if path.exists() else [])
        for name, tuned in study.items()
    ]
