"""The benchmark's two outcomes together: WER, and updates to a target that about half of the runs miss narrowly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cells import Cell, wrong
from numpy.typing import NDArray
from worlds import World

from asr.benchmark.entries import DEV_LOSS
from asr.benchmark.rules import LEVEL
from asr.compare.compare import compare
from asr.compare.inputs.runs import Curve, Inputs, Run, SetErrors
from asr.compare.result import Comparison
from asr.compare.statistics.times import times_to_target

Array = NDArray[np.float64]
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

    def comparison(self, rng: np.random.Generator, advantages: Sequence[float]) -> Comparison:
        """Return what is found of systems with these logarithms of factors of lower losses, the baseline first."""
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
                {"test": SetErrors(ids, ids, words, tuple(errors[system, seed].tolist()), depends_on_audio=True)},
                curves={DEV_LOSS: Curve(tuple(UPDATES.tolist()), (), tuple(losses[system, seed].tolist()))},
            )
            for system, seed in np.ndindex(shape)
        ]
        target = float(np.median(losses[0].min(-1)))
        times = times_to_target(runs, target, "updates", LEVEL, "0", metric=DEV_LOSS)
        assert times is not None
        return replace(compare(Inputs(runs), title="", baseline="0", level=LEVEL), times=[times])

    def _lost_by_tuning(self, rng: np.random.Generator, shape: tuple[int, int]) -> Array | float:
        if not self.tuned:
            return 0.0
        lost = CURVATURE * rng.uniform(-1, 1, (*shape, TRIALS)) ** 2
        seen = lost + self.sd * rng.normal(size=lost.shape)
        return np.take_along_axis(lost, seen.argmin(-1)[..., None], -1)[..., 0]


def learning_curve(gains: Array) -> Array:
    """Return losses (..., validations) of runs whose final loss is lower by factors with these logarithms (...)."""
    logs = np.interp(UPDATES / UPDATES[-1], np.linspace(0, 1, len(LOSSES)), np.log(LOSSES))
    fallen = (logs[0] - logs) / (logs[0] - logs[-1])
    return np.exp(logs - gains[..., None] * fallen)


def found_by(comparison: Comparison) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the pairs, the better first, that WERs and that updates to the target find different."""
    by_wer = {(one.system, one.other) for one in comparison.sets[0].pairs if one.verdict == "better"}
    by_updates = {(one.system, one.other) for one in comparison.times[0].pairs if one.verdict == "better"}
    return by_wer, by_updates


def target_rows(num: int, systems: Sequence[int] = (2, 8, 16)) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are found different by either outcome."""
    for num_systems, sd, tuned in itertools.product(systems, (0.05, 0.3), (False, True)):
        rng, race = np.random.default_rng(0), Race(sd, tuned)
        comparisons = [race.comparison(rng, [0.0] * num_systems) for _ in range(num)]
        found = [found_by(one) for one in comparisons]
        rows = [row for one in comparisons for row in one.times[0].rows]
        yield {
            "systems": num_systems,
            "sd of final loss %": 100 * sd,
            "ruleset": "tuned" if tuned else "as shipped",
            "runs that reach the target": Cell(
                sum(row.num_reached for row in rows) / sum(r.num_runs for r in rows), num
            ),
            "false by WER": Cell(float(np.mean([bool(by_wer) for by_wer, _ in found])), num, at_most=1 - LEVEL),
            "false by updates": Cell(float(np.mean([bool(one) for _, one in found])), num, at_most=1 - LEVEL),
            "false by either": wrong([bool(by_wer | by_updates) for by_wer, by_updates in found]),
        }


def target_power_rows(num: int, systems: Sequence[int] = (2, 16)) -> Iterator[Mapping[str, object]]:
    """Yield how often one better system of several is found better than the baseline, which all others equal."""
    for num_systems, sd, tuned, ratio in itertools.product(systems, (0.05, 0.3), (False, True), (0.8, 0.6, 0.4)):
        rng, race = np.random.default_rng(0), Race(sd, tuned)
        advantages = [0.0, -float(np.log(ratio)), *[0.0] * (num_systems - 2)]
        found = [found_by(race.comparison(rng, advantages)) for _ in range(num)]
        yield {
            "systems": num_systems,
            "sd of final loss %": 100 * sd,
            "ruleset": "tuned" if tuned else "as shipped",
            "its final loss": ratio,
            "found by WER": Cell(float(np.mean([("1", "0") in by_wer for by_wer, _ in found])), num),
            "found by updates": Cell(float(np.mean([("1", "0") in one for _, one in found])), num),
        }
