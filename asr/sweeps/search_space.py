"""What a sweep searches: ranges and choices by key, read from its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asr.errors import ConfigError
from asr.nested import flatten

SEEDS_APART = 1000  # of the trials of two studies
MOST = 1000  # trials, studies, seeds
NOT_CHOSEN = ("seed", "run_dir", "resume", "sweep", "decode_test", "allow_changes")  # that a sweep sets, or no job has


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


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Width = Annotated[float, Field(ge=1, le=1e6)]
Choices = dict[str, Annotated[list[Any], Field(min_length=1)]]
Amount = Annotated[int, Field(ge=1, le=MOST)]


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

    only: list[str] | None
    schedule_modes: Annotated[list[Literal["common", "usual"]], Field(min_length=1)]
    common_schedule: str
    trials: Amount
    max_extra_trials: Annotated[int, Field(ge=0, le=MOST)]
    tuning_seed: Annotated[int, Field(ge=0, le=2**31)]
    tuning_overrides: list[str]
    studies: Amount
    compared: Annotated[list[str], Field(min_length=1)] | None
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=MOST)]
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
            found = cls.model_validate({**sweep, "choices": choices})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("sweep", *first["loc"])))
            if first["type"] == "missing":
                raise ConfigError(
                    f"{where} is missing: hydra/sweeper=tuned needs sweep=optimizers or sweep=lr"
                ) from None
            raise ConfigError(f"{where}: {first['msg']}, given {first['input']!r}") from None
        if fixed := [key for key in choices if key.partition(".")[0] in NOT_CHOSEN]:
            raise ConfigError(
                f"sweep.choices.{fixed[0]}: this is the sweep's own, and no setting to choose; leave it out"
            )
        for name in found.only or ():
            if name not in found.optimizers:
                raise ConfigError(f"sweep.only: no range is known of {name!r}; there are {', '.join(found.optimizers)}")
        found._refuse_seeds()
        return found

    def _refuse_seeds(self) -> None:
        """Refuse seeds that occur twice, do not fit the studies, or are those of trials."""
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"sweep.seeds: every seed once, given {self.seeds}")
        if self.studies not in (1, len(self.seeds)):
            raise ConfigError(
                f"sweep.studies={self.studies} needs as many sweep.seeds, one for the winner of each study; given "
                f"{len(self.seeds)}"
            )
        own = {self.tuning_seed + SEEDS_APART * study for study in range(self.studies)}
        if own & set(self.seeds):
            raise ConfigError(
                f"sweep.seeds: {min(own & set(self.seeds))} is a seed of the trials, which were chosen with it; give "
                "another, or another sweep.tuning_seed"
            )

    def space(self, optimizer: str, schedule: str) -> dict[str, Range | Choice]:
        """Return ranges and choices by key: those of the optimizer, of its schedule, and of all systems."""
        space: dict[str, Range | Choice] = {}
        for group, own in (("optimizer", self.optimizers[optimizer]), ("schedule", self.schedules[schedule])):
            for key, around in own.around.items():
                width: float = getattr(self.widths, "lr" if key == "lr" else group)
                space[f"{group}.{key}"] = Range(around, width)
            space |= {f"{group}.{key}": Choice(values) for key, values in own.choices.items()}
        return space | {key: Choice(values) for key, values in self.choices.items()}
