"""How learning rate and warm-up are chosen: the same number of trials for every system, by dev WER alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asr.cli.errors import ConfigError


@dataclass
class TunedSystem:
    """An optimizer with a schedule, and the trials that were made with it.

    Attributes:
        name: of the optimizer and the schedule.
        overrides: that choose both.
        warmups: overrides that choose a warm-up, the usual one first.
        trials: WER on the development sets by learning rate, with the usual warm-up.
        warmup_trials: the same by warm-up, at the best learning rate.
    """

    name: str
    overrides: tuple[str, ...]
    warmups: tuple[str, ...] = ()
    trials: dict[float, float] = field(default_factory=dict)
    warmup_trials: dict[str, float] = field(default_factory=dict)

    @property
    def best_lr(self) -> float:
        """The learning rate with the lowest WER; in a tie, the one nearest to the middle of those tried."""
        lowest = min(self.trials.values())
        lrs = sorted(self.trials)
        middle = (math.log(lrs[0]) + math.log(lrs[-1])) / 2
        return min((lr for lr in lrs if self.trials[lr] == lowest), key=lambda lr: abs(math.log(lr) - middle))

    @property
    def best_warmup(self) -> str | None:
        """The override with the lowest WER; in a tie, the usual one."""
        return min(self.warmups, key=lambda warmup: self.warmup_trials.get(warmup, math.inf), default=None)

    @property
    def at_edge(self) -> bool:
        """Whether the smallest or the largest learning rate is the best, or as good: a better one may lie beyond."""
        return any(self._edges())

    @property
    def has_learned(self) -> bool:
        """Whether any trial made fewer errors than there are words."""
        return min(self.trials.values()) < 1

    def _edges(self) -> tuple[bool, bool]:
        """Return whether the smallest, and whether the largest learning rate has the lowest WER."""
        lowest = min(self.trials.values())
        return self.trials[min(self.trials)] == lowest, self.trials[max(self.trials)] == lowest

    def next_lr(self) -> float:
        """Return the learning rate to try next: beyond an edge, else between the best and its better neighbor.

        If both edges are the best, as where nothing was learned, the range grows downwards and upwards in turn.
        """
        lrs = sorted(self.trials)
        if len(lrs) == 1:
            return rounded(3 * lrs[0])
        below, above = self._edges()
        if below and not (above and len(lrs) % 2 == 0):
            return rounded(lrs[0] ** 2 / lrs[1])
        if above:
            return rounded(lrs[-1] ** 2 / lrs[-2])
        place = lrs.index(self.best_lr)
        neighbor = min(lrs[place - 1], lrs[place + 1], key=lambda lr: self.trials[lr])
        return rounded(math.sqrt(lrs[place] * neighbor))

    def words(self, lr: float, warmup: str | None) -> list[str]:
        """Return the overrides of a run."""
        return [*self.overrides, f"optimizer.lr={lr:g}", *([warmup] if warmup else [])]

    def chosen(self) -> list[str]:
        """Return the overrides of the best that was found."""
        return self.words(self.best_lr, self.best_warmup)


def rounded(lr: float) -> float:
    """Return a learning rate with two significant digits, so that it is typed and named shortly."""
    return float(f"{lr:.2g}")


def systems(sweep: Mapping[str, Any]) -> list[tuple[TunedSystem, list[float]]]:
    """Return the systems that are tuned, each with its first learning rates.

    Args:
        sweep: ``optimizers`` (lr, usual schedule), ``schedules`` (overrides, warm-ups), ``common_schedule``,
            ``schedule_modes``, ``only``.

    Raises:
        ConfigError: a name is unknown, or an optimizer would get another number of trials than others.
    """
    optimizers, schedules = sweep["optimizers"], sweep["schedules"]
    only = list(optimizers) if sweep["only"] is None else list(sweep["only"])
    for name in only:
        if name not in optimizers:
            raise ConfigError(f"sweep.only: no range is known of {name!r}; there are {', '.join(optimizers)}")
    for mode in sweep["schedule_modes"]:
        if mode not in ("common", "usual"):
            raise ConfigError(f"sweep.schedule_modes may hold common and usual, given {mode!r}")
    found = []
    for name in only:
        by_mode = {"common": sweep["common_schedule"], "usual": optimizers[name]["usual"]}
        for schedule in dict.fromkeys(by_mode[mode] for mode in sweep["schedule_modes"]):
            if schedule not in schedules:
                raise ConfigError(
                    f"sweep: no schedule {schedule!r} in sweep.schedules; there are {', '.join(schedules)}"
                )
            options = schedules[schedule]
            words = (f"optimizer={name}", f"schedule={schedule}", *options["overrides"])
            lrs = [float(lr) for lr in optimizers[name]["lr"]]
            found.append((TunedSystem(f"{name} {schedule}", words, tuple(options["warmups"])), lrs))
    _check_equal_trials(found)
    return found


def _check_equal_trials(found: Sequence[tuple[TunedSystem, list[float]]]) -> None:
    counts = {(len(set(lrs)), len(system.warmups)) for system, lrs in found}
    if not found or len(counts) > 1 or min(counts)[0] < 1:
        raise ConfigError(
            "sweep: every system gets the same number of trials, at least one lr; numbers of lrs and warm-ups are "
            + (", ".join(f"{c.name}: {len(set(lrs))} and {len(c.warmups)}" for c, lrs in found) or "none")
        )
