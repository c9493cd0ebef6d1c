"""What a sweep searches: ranges and choices by key, read from its config."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveInt

from asr.ranges import Positive, Seed
from asr.run.command_line import override_key
from asr.run.options import Section
from werdict.errors import ConfigError
from werdict.files import flatten
from werdict.runs import LR

SEEDS_APART = 1000  # of the trials of two studies
UNTUNED = "untuned "  # before the name of an optimizer, the system with its own default options
BEYOND = 3.0  # a trial beyond an edge has the outermost lr that was tried, times or divided by this

Settings = dict[str, Any]  # values by key of the config
Width = Annotated[float, Field(ge=1, le=1e6)]
Choices = dict[str, Annotated[list[Any], Field(min_length=1)]]


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


class _Widths(Section):
    lr: Width
    optimizer: Width
    schedule: Width


class _Space(Section):
    around: dict[str, Positive] = Field({})
    choices: Choices = Field({})


class _Optimizer(_Space):
    usual: str


class _Schedule(_Space):
    overrides: list[str] = Field([])


class Search(Section):
    """What ``configs/sweep/optimizers.yaml`` may say; it tells what each key means."""

    model_config = ConfigDict(extra="ignore")  # keys of all sweeps

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
        choices = flatten(sweep["choices"]) if sweep.get("choices") else {}
        search = cls.of({**sweep, "choices": choices}, "sweep.")
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


@dataclass(frozen=True)
class Trial:
    """Settings, and the WER on the development sets that they gave; infinite without one."""

    settings: Settings
    wer: float

    @property
    def lr(self) -> float:
        """Learning rate."""
        return float(self.settings[LR])


@dataclass
class TunedSystem:
    """An optimizer with a schedule, what is searched for it, and the trials that were made.

    Attributes:
        name: of the optimizer and, if any optimizer has several, of the schedule.
        optimizer: its name.
        overrides: that choose both.
        is_usual: whether the schedule is the one that the optimizer is compared with untuned.
        space: what is searched, by key.
        seed: of the places that are tried: the same for all systems.
        trials: so far.
    """

    name: str
    optimizer: str
    overrides: tuple[str, ...]
    is_usual: bool
    space: Mapping[str, Range | Choice]
    seed: int = 0
    trials: list[Trial] = field(default_factory=list)

    @cached_property
    def _settings(self) -> Iterator[Settings]:
        """The settings to try: the middle of the space, then a scrambled Halton sequence, more even than chance.

        The middle is what is thought best: a few trials, whose WERs seeds change, often find nothing better.

        Reference:
            Bousquet et al. 2017, "Critical Hyper-Parameters: No Random, No Cry", arXiv:1706.03200.
        """
        from scipy.stats import qmc  # takes half a second, which every command would wait for

        yield {key: axis.at(0.0 if isinstance(axis, Choice) else 0.5) for key, axis in self.space.items()}
        sequence = qmc.Halton(len(self.space), scramble=True, rng=self.seed)
        while True:
            places: Sequence[float] = sequence.random(1)[0].tolist()
            yield {key: axis.at(u) for (key, axis), u in zip(self.space.items(), places, strict=True)}

    def sample(self, num: int) -> list[Settings]:
        """Return the next settings to try."""
        return list(itertools.islice(self._settings, num))

    def next_settings(self) -> Settings:
        """Return what to try next: beyond the edge where the best lr lies, else the next of the sequence.

        If both edges are as good, as where nothing was learned, the range grows downwards and upwards in turn.
        """
        below, above = self._edges()
        if not (below or above):
            return self.sample(1)[0]
        lrs = [trial.lr for trial in self.trials]
        down = below and not (above and len(lrs) % 2 == 0)
        return {**self.best.settings, LR: rounded(min(lrs) / BEYOND if down else max(lrs) * BEYOND)}

    @property
    def best(self) -> Trial:
        """The trial with the lowest WER; in a tie, the one whose lr is nearest to the middle of those tried."""
        logs = [math.log(trial.lr) for trial in self.trials]
        middle = (min(logs) + max(logs)) / 2
        return min(self.trials, key=lambda trial: (trial.wer, abs(math.log(trial.lr) - middle)))

    @property
    def at_edge(self) -> bool:
        """Whether the smallest or the largest learning rate is the best, or as good: a better one may lie beyond."""
        return any(self._edges())

    @property
    def has_learned(self) -> bool:
        """Whether any trial made fewer errors than there are words."""
        return self.best.wer < 1

    def _edges(self) -> tuple[bool, bool]:
        """Return whether the smallest, and whether the largest learning rate has the lowest WER."""
        lowest = self.best.wer
        lrs = [trial.lr for trial in self.trials]
        best = {trial.lr for trial in self.trials if trial.wer == lowest}
        return min(lrs) in best, max(lrs) in best

    def extreme_settings(self) -> Iterator[Settings]:
        """Yield settings among which are every choice of a key, and both ends of every range."""
        num = max([2, *(len(axis.values) for axis in self.space.values() if isinstance(axis, Choice))])
        for place in range(num):
            yield {key: axis.at(place / (num - 1)) for key, axis in self.space.items()}

    def words(self, settings: Settings) -> list[str]:
        """Return the overrides of a run."""
        fixed = [word for word in self.overrides if override_key(word) not in settings]
        return fixed + [
            f"{key}={json.dumps(value, ensure_ascii=False, separators=(',', ':'))}" for key, value in settings.items()
        ]


def systems(sweep: Search, seed: int) -> list[TunedSystem]:
    """Return the systems that are tuned.

    Args:
        sweep: what is searched.
        seed: of the settings that are tried.

    Raises:
        ConfigError: a schedule is unknown, or a key that is to be searched is no system's.
    """
    pairs = []
    only = list(dict.fromkeys(sweep.optimizers if sweep.only is None else sweep.only))
    for name in only:
        by_mode = {"common": sweep.common_schedule, "usual": sweep.optimizers[name].usual}
        pairs += [(name, schedule) for schedule in dict.fromkeys(by_mode[mode] for mode in sweep.schedule_modes)]
    tuned, keys = [], set[str]()
    for name, schedule in pairs:
        if schedule not in sweep.schedules:
            raise ConfigError(f"sweep.schedules: there is no {schedule!r}; allowed: {', '.join(sweep.schedules)}")
        overrides = (f"optimizer={name}", f"schedule={schedule}", *sweep.schedules[schedule].overrides)
        whole = sweep.space(name, schedule)
        keys |= whole.keys()
        space = {key: axis for key, axis in whole.items() if sweep.search is None or key in sweep.search}
        if LR not in space:
            raise ConfigError(f"sweep.search: the lr of {name} must be searched too, and have a range")
        label = f"{name} {schedule}" if len(pairs) > len(only) else name
        usual = sweep.optimizers[name].usual if "usual" in sweep.schedule_modes else sweep.common_schedule
        tuned.append(TunedSystem(label, name, overrides, schedule == usual, space, seed))
    unknown = set(sweep.search or ()) - keys
    if unknown:
        raise ConfigError(f"sweep.search: there is no range for {min(unknown)!r}; allowed: {', '.join(sorted(keys))}")
    return tuned


def shares(tuned: Sequence[TunedSystem], total: int) -> list[int]:
    """Return how many trials each system gets, so that every optimizer has the same number over all its schedules.

    Raises:
        ConfigError: an optimizer's number of schedules does not divide ``total``.
    """
    counts = [sum(system.optimizer == other.optimizer for other in tuned) for system in tuned]
    for system, count in zip(tuned, counts, strict=True):
        if total % count:
            raise ConfigError(
                f"sweep.trials: {system.optimizer} has {count} schedules, which do not divide {total} trials; "
                f"give a multiple of {count}"
            )
    return [total // count for count in counts]


def compared_systems(sweep: Search, tuned: Sequence[TunedSystem]) -> list[str]:
    """Return the names of the systems to compare: by default the tuned ones, then each optimizer untuned.

    Raises:
        ConfigError: ``sweep.compared`` names another.
    """
    untuned = [f"{UNTUNED}{system.optimizer}" for system in tuned if sweep.with_defaults and system.is_usual]
    names = [*(system.name for system in tuned), *untuned]
    for name in sweep.compared or ():
        if name not in names:
            raise ConfigError(f"sweep.compared: no system is called {name!r}; allowed: {', '.join(names)}")
    return names if sweep.compared is None else sweep.compared
