"""How the settings of optimizers are chosen: the same number of trials for each, judged on dev alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import qmc

from asr.cli.errors import ConfigError

LR = "optimizer.lr"
BEYOND = 3.0  # a trial beyond an edge has so many times the outermost lr that was tried, or as small a part of it

Settings = dict[str, Any]  # values by key of the config


@dataclass(frozen=True)
class Range:
    """Values of one key: ``around`` times ``width`` to the powers from -1 to 1, evenly on a log scale."""

    around: float
    width: float

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1, with two significant digits, so that it is typed shortly."""
        return rounded(self.around * self.width ** (2 * place - 1))


@dataclass(frozen=True)
class Choice:
    """Values of one key that have no order."""

    values: Sequence[Any]

    def at(self, place: float) -> Any:
        """Return the value at a place from 0 to 1."""
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]


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
        space: what is searched, by key.
        seed: of the places that are tried: the same for all systems.
        trials: so far.
    """

    name: str
    optimizer: str
    overrides: tuple[str, ...]
    space: Mapping[str, Range | Choice]
    seed: int = 0
    trials: list[Trial] = field(default_factory=list)

    @cached_property
    def _sequence(self) -> qmc.Halton:
        return qmc.Halton(len(self.space), scramble=True, rng=self.seed)

    def sample(self, num: int) -> list[Settings]:
        """Return the next settings of a scrambled Halton sequence, which fills the space more evenly than chance.

        Reference:
            Bousquet et al. 2017, "Critical Hyper-Parameters: No Random, No Cry", arXiv:1706.03200.
        """
        places: Sequence[Sequence[float]] = self._sequence.random(num).tolist()
        return [{key: one.at(u) for (key, one), u in zip(self.space.items(), row, strict=True)} for row in places]

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

    def words(self, settings: Settings) -> list[str]:
        """Return the overrides of a run."""
        return [
            *self.overrides,
            *(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in settings.items()),
        ]


def rounded(value: float) -> float:
    """Return a number with two significant digits."""
    return float(f"{value:.2g}")


def systems(sweep: Mapping[str, Any], seed: int) -> list[TunedSystem]:
    """Return the systems that are tuned.

    Args:
        sweep: ``configs/sweep/optimizers.yaml``.
        seed: of the settings that are tried.

    Raises:
        ConfigError: a name is unknown, a value is out of its range, or optimizers would not be searched alike.
    """
    optimizers, schedules = sweep["optimizers"], sweep["schedules"]
    only = list(optimizers) if sweep["only"] is None else list(sweep["only"])
    for name in only:
        if name not in optimizers:
            raise ConfigError(f"sweep.only: no range is known of {name!r}; there are {', '.join(optimizers)}")
    for mode in sweep["schedule_modes"]:
        if mode not in ("common", "usual"):
            raise ConfigError(f"sweep.schedule_modes may hold common and usual, given {mode!r}")
    pairs = []
    for name in only:
        by_mode = {"common": sweep["common_schedule"], "usual": optimizers[name]["usual"]}
        pairs += [(name, schedule) for schedule in dict.fromkeys(by_mode[mode] for mode in sweep["schedule_modes"])]
    if not pairs:
        raise ConfigError("sweep: nothing to tune: sweep.only and sweep.schedule_modes name at least one each")
    found = []
    for name, schedule in pairs:
        if schedule not in schedules:
            raise ConfigError(f"sweep: no schedule {schedule!r} in sweep.schedules; there are {', '.join(schedules)}")
        words = (f"optimizer={name}", f"schedule={schedule}", *schedules[schedule].get("overrides", ()))
        space = _space(sweep, optimizers[name], schedules[schedule])
        if LR not in space:
            raise ConfigError(f"sweep.optimizers.{name}.around: every optimizer needs an lr, given none")
        label = f"{name} {schedule}" if len(pairs) > len(only) else name
        found.append(TunedSystem(label, name, words, space, seed))
    return found


def _space(sweep: Mapping[str, Any], optimizer: Mapping[str, Any], schedule: Mapping[str, Any]) -> Settings:
    """Return ranges and choices by key: those of the optimizer, of its schedule, and of all systems."""
    space: Settings = {}
    for group, own in (("optimizer", optimizer), ("schedule", schedule)):
        for key, around in own.get("around", {}).items():
            width = sweep["widths"]["lr" if key == "lr" else group]
            if not all(isinstance(number, int | float) and number > 0 for number in (around, width)):
                raise ConfigError(
                    f"sweep: {group}.{key} is searched around {around!r} by {width!r}: both must be above 0"
                )
            space[f"{group}.{key}"] = Range(around, width)
        space |= {f"{group}.{key}": Choice(values) for key, values in own.get("choices", {}).items()}
    space |= {key: Choice(values) for key, values in sweep["choices"].items()}
    empty = [key for key, one in space.items() if isinstance(one, Choice) and not one.values]
    if empty:
        raise ConfigError(f"sweep: no value to choose from for {empty[0]}")
    if sweep["search"] is not None:
        space = {key: one for key, one in space.items() if key in sweep["search"]}
    return space


def shares(found: Sequence[TunedSystem], total: int) -> list[int]:
    """Return how many trials each system gets, so that every optimizer has the same number over all its schedules.

    Raises:
        ConfigError: an optimizer's number of schedules does not divide ``total``.
    """
    counts = np.array([[one.optimizer == other.optimizer for other in found] for one in found]).sum(1)
    for system, count in zip(found, counts.tolist(), strict=True):
        if total % count or total < count:
            raise ConfigError(
                f"sweep.trials: {system.optimizer} has {count} schedules, which do not divide {total} trials; "
                f"give a multiple of {count}"
            )
    return [total // count for count in counts.tolist()]
