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
from asr.evaluation.comparison.statistics.moderation import moderated
from asr.evaluation.comparison.statistics.multiple_testing import Pair, holm

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
        noisy: systems whose seeds vary more, with ten times the variance.
        sizes: words of the speakers: equal; log-normal with a standard deviation of 1.5; or one has 60 % of them.
    """

    seed_sd: float
    speaker_sd: float
    taste_sd: float
    num_seeds: int
    num_speakers: int = 40
    sizes: Sizes = "equal"
    noisy: int = 0

    def errors(self, rng: np.random.Generator, num: int, wers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw errors (num, systems, seeds, speakers) of trainings with these true WERs."""
        rates = (
            wers[:, None, None]
            + self.seed_sds(len(wers)) * rng.normal(size=(num, len(wers), self.num_seeds, 1))
            + self.speaker_sd * rng.normal(size=(num, 1, 1, self.num_speakers))
            + self.taste_sd * rng.normal(size=(num, len(wers), 1, self.num_speakers))
        )
        return rng.binomial(self.words, rates.clip(0, 1))

    def seed_sds(self, num_systems: int) -> NDArray[np.float64]:
        """Standard deviation between the seeds of each system."""
        sds = np.full((num_systems, 1, 1), self.seed_sd)
        sds[: self.noisy] *= np.sqrt(10)
        return sds

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
NOISY = [World(0.03, 0.03, 0.0, num_seeds, noisy=noisy) for num_seeds in (3, 5, 10) for noisy in (1, 2, 4)]
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


def adjusted_p_values(
    world: World, num: int, wers: NDArray[np.float64], seed: int = 0
) -> dict[Pair, NDArray[np.float64]]:
    """Compare all pairs of systems ``num`` times, as a report does."""
    errors = world.errors(np.random.default_rng(seed), num, wers)
    pairs = [(str(a), str(b)) for a, b in itertools.combinations(range(len(wers)), 2)]
    differences = [estimate(errors[:, int(a)] - errors[:, int(b)], world.words) for a, b in pairs]
    together = moderated(differences, errors.sum(-1) / world.words.sum())
    p_values = np.stack([found.p_value() for found in together], axis=-1)
    adjusted = holm(p_values)
    return {pair: adjusted[:, index] for index, pair in enumerate(pairs)}


def false_tables(world: World, num: int, num_systems: int = NUM_SYSTEMS) -> float:
    """Share of tables of equal systems in which any pair is said to differ."""
    adjusted = adjusted_p_values(world, num, np.full(num_systems, WER))
    return float((np.stack(list(adjusted.values())) <= ALPHA).any(0).mean())


def table_power(world: World, num: int, difference: float, num_systems: int = NUM_SYSTEMS) -> float:
    """Share of tables that tell a single better system from another one, neither of them the baseline."""
    wers = np.full(num_systems, WER)
    wers[1] -= difference
    return float((adjusted_p_values(world, num, wers)["1", "2"] <= ALPHA).mean())


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
    parts = (
        "| seeds | speakers | sizes | noisy systems | sd of seeds | of speakers | of taste | means in their interval "
    )
    print(f"{parts}| false positives | at α = 0.05 / 28, × nominal |", end="")
    print(" with Satterthwaite | false tables of 8 | 3 sd of seeds found |")
    print("|---" * 13 + "|")
    for world in (*WORLDS, *UNEQUAL, *NOISY):
        cells = (
            f"{100 * coverage(world, num):.1f}",
            f"{100 * false_positives(world, num):.1f}",
            f"{false_positives(world, num, small) / small:.2f}",
            f"{satterthwaite_false_positives(world, num, small) / small:.2f}",
            f"{100 * false_tables(world, num // 10):.1f}",
            f"{100 * power(world, num, 3 * world.seed_sd):.0f}" if world.seed_sd else "-",
        )
        setup = (
            world.num_seeds,
            world.num_speakers,
            world.sizes,
            world.noisy,
            world.seed_sd,
            world.speaker_sd,
            world.taste_sd,
        )
        print("| " + " | ".join(map(str, (*setup, *cells))) + " |", flush=True)


if __name__ == "__main__":
    main()
