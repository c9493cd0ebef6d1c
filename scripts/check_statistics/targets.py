"""The benchmark's two outcomes together: WER, and updates to a target that about half of the runs miss narrowly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from cells import Row, cell, repeated
from numpy.typing import NDArray
from tables import judge
from worlds import System, World

from werdict.benchmark.entries import LEVEL
from werdict.statistics.contrasts import Contrasts
from werdict.statistics.times import DevCurve

Array = NDArray[np.float64]
Signs = NDArray[np.int64]
UPDATES = np.arange(40, 801, 40)
# AdamW's losses on dev on the task fsdd, at every eighth of the run
LOSSES = (2.9, 2.716, 1.998, 1.261, 0.816, 0.492, 0.312, 0.182, 0.162)
LOSS_NOISE = 0.01  # of the logarithm of each
COMMON_SD = 0.1  # what a seed adds to the logarithm of the final loss of all systems
TRIALS = 5
CURVATURE = 1.0  # of the logarithm of the final loss over a range of settings from -1 to 1, the best at 0
SPEAKER_SD, TASTE_SD, NUM_SPEAKERS = 0.2, 0.05, 10


@dataclass(frozen=True)
class Race:
    """Runs of systems; the logarithm of the final loss on dev is normal over seeds.

    Attributes:
        sd: over seeds; 0.05: half of the runs of equal systems miss the target by some percent.
        tuned: whether each seed has settings of its own, the best-looking of some trials.
        num_seeds: of each system.
    """

    sd: float
    tuned: bool = False
    num_seeds: int = 5

    def verdicts(self, num: int, seed: int, advantages: Sequence[float]) -> tuple[Signs, Signs, Array]:
        """Compare systems whose losses are lower by factors with these logarithms, the baseline first.

        Returns:
            Verdicts of each system (num, K - 1) by WER and by updates to the target, -1 for better than the baseline;
            and the share of runs (num,) that reached the target.
        """
        rng = np.random.default_rng(seed)
        shape = num, len(advantages), self.num_seeds
        gains = np.reshape(advantages, (-1, 1)) + self.sd * rng.normal(size=shape)
        gains += COMMON_SD * rng.normal(size=(num, 1, self.num_seeds)) - self._lost_by_tuning(rng, shape)
        losses = learning_curve(gains)
        losses *= np.exp(LOSS_NOISE * rng.normal(size=losses.shape))
        systems = [System(seed_sd=0.0)] * len(advantages)
        world = World(systems, self.num_seeds, speaker_sd=SPEAKER_SD, taste_sd=TASTE_SD, num_speakers=NUM_SPEAKERS)
        by_wer = judge(world.contrasts(world.errors(rng, num, losses[..., -1])), with_best=False, alpha=1 - LEVEL)
        times = np.array([self._times(one) for one in losses])
        by_updates = judge(Contrasts(np.log(times), 1 / UPDATES[-1]), with_best=False, alpha=1 - LEVEL)
        reached = (times < UPDATES[-1]).mean((-1, -2))
        return by_wer.verdicts(1 - LEVEL), by_updates.verdicts(1 - LEVEL), reached

    def _times(self, losses: Array) -> Array:
        """Return updates (K, S) to a target that half of the baseline's runs reach, from losses (K, S, validations)."""
        target = float(np.median(losses[0].min(-1)))
        curves = (DevCurve(np.append(0.0, UPDATES), np.append(own[0], own)) for own in losses.reshape(-1, len(UPDATES)))
        first = [min(curve.first_time(target), UPDATES[-1]) for curve in curves]
        return np.reshape(first, losses.shape[:-1])

    def _lost_by_tuning(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array | float:
        if not self.tuned:
            return 0.0
        lost = CURVATURE * rng.uniform(-1, 1, (*shape, TRIALS)) ** 2
        seen = lost + self.sd * rng.normal(size=lost.shape)
        return np.take_along_axis(lost, seen.argmin(-1)[..., None], -1)[..., 0]

    @property
    def setup(self) -> dict[str, object]:
        """What differs between races, by column of a table."""
        return {"sd of final loss %": f"{100 * self.sd:g}", "ruleset": "tuned" if self.tuned else "as shipped"}


RACES = tuple(Race(sd, tuned) for sd in (0.05, 0.3) for tuned in (False, True))


def learning_curve(gains: Array) -> Array:
    """Return losses (..., validations) of runs whose final loss is lower by factors with these logarithms (...)."""
    logs = np.interp(UPDATES / UPDATES[-1], np.linspace(0, 1, len(LOSSES)), np.log(LOSSES))
    fallen = (logs[0] - logs) / (logs[0] - logs[-1])
    return np.exp(logs - gains[..., None] * fallen)


def race_rows(num: int, systems: Sequence[int] = (2, 8, 16)) -> Iterator[Row]:
    """Yield how often systems that equal the baseline are found different by either outcome."""

    def simulate(race: Race, num_systems: int, num: int, seed: int) -> Row:
        by_wer, by_updates, reached = race.verdicts(num, seed, [0.0] * num_systems)
        false = (by_wer != 0).any(-1), (by_updates != 0).any(-1)
        return {
            "systems": num_systems,
            **race.setup,
            "runs that reach the target %": f"{100 * reached.mean():.0f}",
            "false by WER": cell(false[0], 1 - LEVEL),
            "false by updates": cell(false[1], 1 - LEVEL),
            "false by either": cell(false[0] | false[1], 2 * (1 - LEVEL)),
        }

    for num_systems, race in itertools.product(systems, RACES):
        yield repeated(partial(simulate, race, num_systems), num)


def race_power_rows(num: int, systems: Sequence[int] = (2, 10, 16)) -> Iterator[Row]:
    """Yield how often one better system of several is found better than the baseline, which all others equal."""
    for num_systems, race, ratio in itertools.product(systems, RACES, (0.8, 0.6, 0.4)):
        by_wer, by_updates, _ = race.verdicts(num, 0, [0.0, -float(np.log(ratio)), *[0.0] * (num_systems - 2)])
        yield {
            "systems": num_systems,
            **race.setup,
            "loss of one": f"{ratio:g} of the others'",
            "found by WER": cell(by_wer[:, 0] == -1),
            "found by updates": cell(by_updates[:, 0] == -1),
        }
