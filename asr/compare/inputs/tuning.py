"""Reads which settings a sweep has tried, and what they gave, for a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from asr.plain_data import read_json

FILE = "tuning.json"
LR = "optimizer.lr"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


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


class _Trial(BaseModel):
    settings: dict[str, Any]
    wer: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class _System(BaseModel):
    trials: Annotated[list[_Trial], Field(min_length=1)]
    chosen: dict[str, Any]
    at_edge: bool


_STUDIES: TypeAdapter[list[dict[str, _System]]] = TypeAdapter(list[dict[str, _System]])
_RATE: TypeAdapter[float] = TypeAdapter(Positive)


def read_tuning(folder: Path) -> list[Tuning]:
    """Return what the studies of a sweep tried; empty if it has not tuned.

    Raises:
        ValueError: the file is not what a sweep writes.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        studies = _STUDIES.validate_python(read_json(path))
        return [
            Tuning(
                name,
                tuple(
                    (_RATE.validate_python(one.settings.get(LR)), math.inf if one.wer is None else one.wer)
                    for one in system.trials
                ),
                _RATE.validate_python(system.chosen.get(LR)),
                system.at_edge,
            )
            for study in studies
            for name, system in study.items()
        ]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise ValueError(f"{path} is not what a sweep that tunes writes: {where}: {first['msg']}") from None
