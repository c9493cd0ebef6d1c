"""How often asr-compare is wrong: simulated trainings whose true WERs are known, compared as real ones are.

Run:  python scripts/check_statistics.py [REPETITIONS]

A simulated training makes errors on each word of a speaker with a probability that is the system's WER, plus a part
of the seed, a part of the speaker, and a part of speaker and system together (a system may suit some speakers).
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from asr.evaluation.comparison.statistics.estimate import Estimate, estimate
from asr.evaluation.comparison.statistics.multiple_testing import holm, pair_weights

ALPHA = 0.05
WER = 0.15
WORDS_EACH = 100  # of a speaker
NUM_SYSTEMS = 8
Sizes = Literal["equal", "log-normal", "one long"]
SETS: tuple[tuple[int, Sizes], ...] = ((16, "log-normal"), (100, "log-normal"), (16, "one long"), (100, "one long"))


@dataclass(frozen=True)
class World:
    """What WERs depend on, as standard deviations.

    Attributes:
        seed_sd: between seeds of a system.
        speaker_sd: between speakers, for all systems alike.
        taste_sd: between speakers, for each system anew.
        num_seeds: of each system.
        num_speakers: in the test set.
        sizes: words of the speakers: equal; log-normal with a standard deviation of 1.5; or one has 60 % of them.
    """

    seed_sd: float
    speaker_sd: float
    taste_sd: float
    num_seeds: int
    num_speakers: int = 40
    sizes: Sizes = "equal"

    def errors(self, rng: np.random.Generator, num: int, wers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw errors (num, systems, seeds, speakers) of trainings with these true WERs."""
        rates = (
            wers[:, None, None]
            + self.seed_sd * rng.normal(size=(num, len(wers), self.num_seeds, 1))
            + self.speaker_sd * rng.normal(size=(num, 1, 1, self.num_speakers))
            + self.taste_sd * rng.normal(size=(num, len(wers), 1, self.num_speakers))
        )
        return rng.binomial(self.words, rates.clip(0, 1))

    @property
    def words(self) -> NDArray[np.int64]:
        """Number of words of each speaker."""
        words = np.full(self.num_speakers, WORDS_EACH)
        if self.sizes == "log-normal":
            # quantiles, not draws: a world is always the same
            levels = (np.arange(self.num_speakers) + 0.5) / self.num_speakers
            words = np.maximum(1, WORDS_EACH * np.exp(1.5 * stats.norm.ppf(levels))).astype(np.int64)
        elif self.sizes == "one long":
            words[0] = round(1.5 * words[1:].sum())
        return words


WORLDS = [
    World(seed_sd, 0.03, taste_sd, num_seeds)
    for num_seeds in (3, 5, 10)
    for seed_sd, taste_sd in ((0.0, 0.0), (0.01, 0.0), (0.03, 0.0), (0.01, 0.01), (0.01, 0.03), (0.03, 0.03))
]
UNEQUAL = [
    World(0.01, 0.03, taste_sd, num_seeds, num_speakers, sizes)
    for num_seeds in (3, 5, 10)
    for num_speakers, sizes in SETS
    for taste_sd in (0.0, 0.03)
]


def pair_estimates(world: World, num: int, difference: float = 0.0, seed: int = 0) -> Estimate:
    """Compare two systems ``num`` times, the first being better by ``difference``."""
    errors = world.errors(np.random.default_rng(seed), num, np.array([WER - difference, WER]))
    return estimate(errors[:, 0] - errors[:, 1], world.words)


def false_positives(world: World, num: int, alpha: float = ALPHA) -> float:
    """Share of comparisons of equal systems that find a difference."""
    found = pair_estimates(world, num)
    return float((np.abs(found.mean) > found.half_width(alpha)).mean())


def coverage(world: World, num: int, alpha: float = ALPHA) -> float:
    """Share of intervals of a system's mean WER that contain the true one."""
    errors = world.errors(np.random.default_rng(0), num, np.array([WER]))
    found = estimate(errors[:, 0], world.words)
    return float((np.abs(found.mean - WER) <= found.half_width(alpha)).mean())


def power(world: World, num: int, difference: float, alpha: float = ALPHA) -> float:
    """Share of comparisons that find a true difference."""
    found = pair_estimates(world, num, difference)
    return float((found.mean < -found.half_width(alpha)).mean())


def false_tables(world: World, num: int, seed: int = 0) -> float:
    """Share of tables of equal systems in which any pair is said to differ."""
    errors = world.errors(np.random.default_rng(seed), num, np.full(NUM_SYSTEMS, WER))
    pairs = [(str(a), str(b)) for a, b in itertools.combinations(range(NUM_SYSTEMS), 2)]
    differences = (errors[:, int(a)] - errors[:, int(b)] for a, b in pairs)
    p_values = np.stack([estimate(difference, world.words).p_value() for difference in differences], axis=-1)
    return float((holm(p_values, pair_weights(pairs, baseline="0")) <= ALPHA).any(-1).mean())


def satterthwaite_false_positives(world: World, num: int, alpha: float) -> float:
    """The same as ``false_positives`` with Satterthwaite's degrees of freedom, which `Estimate` does not use."""
    found = pair_estimates(world, num)
    variance = found.seed_variance + found.test_variance
    parts = found.seed_variance**2 / (found.num_seeds - 1) + found.test_variance**2 / (found.effective_units - 1)
    return float((np.abs(found.mean) > stats.t.isf(alpha / 2, variance**2 / parts) * np.sqrt(variance)).mean())


def main() -> None:
    """Print a row per world."""
    num = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    small = ALPHA / len(list(itertools.combinations(range(NUM_SYSTEMS), 2)))
    print(f"{num} repetitions; % of comparisons (of tables: {num // 10} repetitions); nominal {100 * ALPHA:g} %\n")
    parts = "| seeds | speakers | sizes | sd of seeds | of speakers | of taste | means in their interval "
    print(f"{parts}| false positives | at α = 0.05 / 28, × nominal |", end="")
    print(" with Satterthwaite | false tables of 8 | 3 sd of seeds found |")
    print("|---" * 12 + "|")
    for world in (*WORLDS, *UNEQUAL):
        cells = (
            f"{100 * coverage(world, num):.1f}",
            f"{100 * false_positives(world, num):.1f}",
            f"{false_positives(world, num, small) / small:.2f}",
            f"{satterthwaite_false_positives(world, num, small) / small:.2f}",
            f"{100 * false_tables(world, num // 10):.1f}",
            f"{100 * power(world, num, 3 * world.seed_sd):.0f}" if world.seed_sd else "-",
        )
        setup = (world.num_seeds, world.num_speakers, world.sizes, world.seed_sd, world.speaker_sd, world.taste_sd)
        print("| " + " | ".join(map(str, (*setup, *cells))) + " |", flush=True)


if __name__ == "__main__":
    main()
