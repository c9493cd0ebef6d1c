"""The benchmark's two outcomes together: WER, and updates to a target that about half of the runs miss narrowly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cells import Cell, wrong
from numpy.typing import NDArray
from worlds import World

from asr.benchmark.entries import DEV_LOSS
from asr.benchmark.rules import LEVEL
from asr.compare.inputs.runs import Curve, Run, SetErrors
from asr.compare.result import Difference, SeedContrast
from asr.compare.statistics.counts import count_errors
from asr.compare.statistics.pairs import SetDifferences
from asr.compare.statistics.times import times_to_target

Array = NDArray[np.float64]
Pairs = set[tuple[str, str]]
SET = "test"
PAIR = ("1", "0")  # the better system and the baseline
UPDATES = np.arange(40, 801, 40)
# AdamW's losses on dev on the task fsdd, at every eighth of the run
LOSSES = (2.9, 2.716, 1.998, 1.261, 0.816, 0.492, 0.312, 0.182, 0.162)
LOSS_NOISE = 0.01  # of the logarithm of each
COMMON_SD = 0.1  # what a seed adds to the logarithm of the final loss of all systems
TRIALS = 5
CURVATURE = 1.0  # of the logarithm of the final loss over a range of settings from -1 to 1, the best at 0
SPEAKERS = World(0.0, 0.0, 0.0, 5, num_speakers=10)
SPEAKER_SD, TASTE_SD = 0.2, 0.05  # of the logarithm of a speaker's rate: of all systems, and of each anew


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

    def found(self, rng: np.random.Generator, advantages: Sequence[float]) -> tuple[Pairs, Pairs, float]:
        """Compare systems whose losses are lower by factors with these logarithms, the baseline first.

        Returns:
            The pairs, the better first, that differ in WER, and those that differ in updates to the target; and the
            share of runs that reached it.
        """
        shape = len(advantages), self.num_seeds
        gains = np.reshape(advantages, (-1, 1)) + self.sd * rng.normal(size=shape)
        gains += COMMON_SD * rng.normal(size=(1, self.num_seeds)) - self._lost_by_tuning(rng, shape)
        losses = learning_curve(gains)
        losses *= np.exp(LOSS_NOISE * rng.normal(size=losses.shape))
        taste = SPEAKER_SD * rng.normal(size=SPEAKERS.num_speakers)
        taste = taste + TASTE_SD * rng.normal(size=(len(advantages), 1, SPEAKERS.num_speakers))
        rates = losses[..., -1:] * np.exp(taste)
        errors = rng.binomial(SPEAKERS.words, rates.clip(0, 1))
        ids = tuple(f"s{place}" for place in range(SPEAKERS.num_speakers))
        words = tuple(SPEAKERS.words.tolist())
        runs = [
            Run(
                Path(f"{system}-{seed}"),
                str(system),
                seed,
                {SET: SetErrors(ids, ids, words, tuple(errors[system, seed].tolist()), depends_on_audio=True)},
                curves={DEV_LOSS: Curve(tuple(UPDATES.tolist()), (), tuple(losses[system, seed].tolist()))},
            )
            for system, seed in np.ndindex(shape)
        ]
        target = float(np.median(losses[0].min(-1)))
        times = times_to_target(runs, target, "updates", LEVEL, "0", metric=DEV_LOSS)
        assert times is not None
        by_wer = SetDifferences(count_errors(runs, SET), LEVEL).differences()
        reached = sum(row.num_reached for row in times.rows) / len(runs)
        return better_pairs(by_wer), better_pairs(times.pairs), reached

    def _lost_by_tuning(self, rng: np.random.Generator, shape: tuple[int, int]) -> Array | float:
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


def better_pairs(pairs: Iterable[Difference | SeedContrast]) -> Pairs:
    """Return the names of the pairs that differ, the better first."""
    return {(one.system, one.other) for one in pairs if one.verdict == "better"}


def share(events: Sequence[bool] | Sequence[float], num: int, at_most: float | None = None) -> Cell:
    """Return the mean."""
    return Cell(float(np.mean(events)), num, at_most)


def target_rows(num: int, systems: Sequence[int] = (2, 8, 16)) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are found different by either outcome."""
    for num_systems, race in itertools.product(systems, RACES):
        rng = np.random.default_rng(0)
        found = [race.found(rng, [0.0] * num_systems) for _ in range(num)]
        yield {
            "systems": num_systems,
            **race.setup,
            "runs that reach the target": share([reached for *_, reached in found], num),
            "false by WER": share([bool(by_wer) for by_wer, *_ in found], num, 1 - LEVEL),
            "false by updates": share([bool(by_updates) for _, by_updates, _ in found], num, 1 - LEVEL),
            "false by either": wrong([bool(by_wer | by_updates) for by_wer, by_updates, _ in found]),
        }


def target_power_rows(num: int, systems: Sequence[int] = (2, 16)) -> Iterator[Mapping[str, object]]:
    """Yield how often one better system of several is found better than the baseline, which all others equal."""
    for num_systems, race, ratio in itertools.product(systems, RACES, (0.8, 0.6, 0.4)):
        rng = np.random.default_rng(0)
        advantages = [0.0, -float(np.log(ratio)), *[0.0] * (num_systems - 2)]
        found = [race.found(rng, advantages) for _ in range(num)]
        yield {
            "systems": num_systems,
            **race.setup,
            "loss of one": f"{ratio:g} of the others'",
            "found by WER": share([PAIR in by_wer for by_wer, *_ in found], num),
            "found by updates": share([PAIR in by_updates for _, by_updates, _ in found], num),
        }
