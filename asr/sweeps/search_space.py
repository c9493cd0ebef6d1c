"""What a sweep searches: ranges and choices by key, read from its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from asr.errors import ConfigError
from asr.options import Positive, Seed
from asr.plain_data import flatten

SEEDS_APART = 1000  # of the trials of two studies


@dataclass(frozen=True)
class Range:
    """Values of one key: ``around`` times ``width`` to the powers from -1 to 1, evenly on a log scale."""

    around: float
    width: float

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1, with two significant digits, so that it is short."""
        return rounded(self.around * self.width ** (2 * place - 1))


@dataclass(frozen=True)
class Choice:
    """Values of one key that have no order."""

    values: Sequence[Any]

    def at(self, place: float) -> Any:
        """Return the value at a place from 0 to 1."""
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]


def rounded(value: float) -> float:
    """Return a number with two significant digits."""
    return float(f"{value:.2g}")


Width = Annotated[float, Field(ge=1, le=1e6)]
Choices = dict[str, Annotated[list[Any], Field(min_length=1)]]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Widths(_Strict):
    lr: Width
    optimizer: Width
    schedule: Width


class _Space(_Strict):
    around: dict[str, Positive] = {}
    choices: Choices = {}


class _Optimizer(_Space):
    usual: str


class _Schedule(_Space):
    overrides: list[str] = []


class Search(_Strict):
    """What ``configs/sweep/optimizers.yaml`` may say; it tells what each key means."""

    model_config = ConfigDict(strict=True, extra="ignore")  # keys of all sweeps

    only: Annotated[list[str], Field(min_length=1)] | None
    schedule_modes: Annotated[list[Literal["common", "usual"]], Field(min_length=1)]
    common_schedule: str
    trials: PositiveInt
    max_extra_trials: Annotated[int, Field(ge=0)]
    tuning_seed: Seed
    tuning_overrides: list[str]
    studies: PositiveInt
    compared: Annotated[list[str], Field(min_length=1)] | None
    seeds: Annotated[list[Seed], Field(min_length=1)]
    with_defaults: bool
    widths: _Widths
    search: list[str] | None
    choices: Choices
    optimizers: dict[str, _Optimizer]
    schedules: dict[str, _Schedule]

    @classmethod
    def read(cls, sweep: Mapping[str, Any]) -> Search:
        """Return what a sweep's config says.

        Raises:
            ConfigError: a value is not of its kind, a name is unknown, or studies and seeds do not fit.
        """
        try:
            choices = flatten(sweep["choices"]) if sweep.get("choices") else {}
            search = cls.model_validate({**sweep, "choices": choices})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("sweep", *first["loc"])))
            raise ConfigError(f"{where}: {first['msg']}, given {first['input']!r}") from None
        for name in search.only or ():
            if name not in search.optimizers:
                line = f"'++sweep.optimizers.{name}={{around: {{lr: 0.001}}, usual: {search.common_schedule}}}'"
                raise ConfigError(
                    f"sweep.only: there is no range for {name!r}; allowed: {', '.join(search.optimizers)}. For your "
                    f"own optimizer, give its usual learning rate: {line}"
                )
        if search.studies not in (1, len(search.seeds)):
            raise ConfigError(
                f"sweep.studies={search.studies} needs as many sweep.seeds, one for the winner of each study; given "
                f"{len(search.seeds)}"
            )
        trial_seeds = {search.tuning_seed + SEEDS_APART * study for study in range(search.studies)}
        if trial_seeds & set(search.seeds):
            raise ConfigError(
                f"sweep.seeds: {min(trial_seeds & set(search.seeds))} is also a seed of the trials; give another, or "
                "another sweep.tuning_seed"
            )
        return search

    def space(self, optimizer: str, schedule: str) -> dict[str, Range | Choice]:
        """Return ranges and choices by key: those of the optimizer, of its schedule, and of all systems."""
        space: dict[str, Range | Choice] = {}
        for group, options in (("optimizer", self.optimizers[optimizer]), ("schedule", self.schedules[schedule])):
            for key, around in options.around.items():
                width: float = getattr(self.widths, "lr" if key == "lr" else group)
                space[f"{group}.{key}"] = Range(around, width)
            space |= {f"{group}.{key}": Choice(values) for key, values in options.choices.items()}
        return space | {key: Choice(values) for key, values in self.choices.items()}
