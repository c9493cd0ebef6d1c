"""Simulated training runs whose true WERs are known.

A run makes errors on each word of a speaker with a probability that is the system's WER, plus a part of the seed, a
part of the speaker, and a part of speaker and system together (a system may suit some speakers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

WER = 0.15
MOST_COUNTS = 4_000_000  # of errors that are drawn at once
Sizes = Literal["equal", "log-normal", "one long"]


@dataclass(frozen=True)
class World:
    """What WERs depend on, as standard deviations.

    Attributes:
        seed_sd: between seeds of a system.
        speaker_sd: between speakers, for all systems alike.
        taste_sd: between speakers, for each system anew.
        num_seeds: of each system.
        num_speakers: in the test set.
        noisy: of the first systems, how many have seeds that vary more, with ten times the variance.
        unstable: of the last systems, how many have seeds with ten times the standard deviation.
        sizes: words of the speakers: equal; log-normal with a standard deviation of 1.5; or one has 60 % of them.
        words_each: of a speaker of usual size.
    """

    seed_sd: float
    speaker_sd: float
    taste_sd: float
    num_seeds: int
    num_speakers: int = 40
    sizes: Sizes = "equal"
    noisy: int = 0
    unstable: int = 0
    words_each: int = 100

    def errors(self, rng: np.random.Generator, num: int, wers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw errors (num, systems, seeds, speakers) of runs with true WERs (systems,) or of as many dimensions."""
        wers = wers[:, None, None] if wers.ndim == 1 else wers
        num_systems = wers.shape[-3]
        rates = (
            wers
            + self.seed_sds(num_systems) * rng.normal(size=(num, num_systems, self.num_seeds, 1))
            + self.speaker_sd * rng.normal(size=(num, 1, 1, self.num_speakers))
            + self.taste_sd * rng.normal(size=(num, num_systems, 1, self.num_speakers))
        )
        return rng.binomial(self.words, rates.clip(0, 1))

    def chunks(self, rng: np.random.Generator, num: int, wers: NDArray[np.float64]) -> Iterator[NDArray[np.int64]]:
        """Yield errors as ``errors`` does, of fewer tables at a time: all would not fit into the memory."""
        size = max(1, MOST_COUNTS // (len(wers) * self.num_seeds * self.num_speakers))
        for done in range(0, num, size):
            yield self.errors(rng, min(size, num - done), wers)

    def seed_sds(self, num_systems: int) -> NDArray[np.float64]:
        """Standard deviation between the seeds of each system."""
        sds = np.full((num_systems, 1, 1), self.seed_sd)
        sds[: self.noisy] *= np.sqrt(10)
        sds[num_systems - self.unstable :] *= 10
        return sds

    @property
    def words(self) -> NDArray[np.int64]:
        """Number of words of each speaker."""
        words = np.full(self.num_speakers, self.words_each)
        if self.sizes == "log-normal":
            # quantiles, not draws: a world is always the same
            levels = (np.arange(self.num_speakers) + 0.5) / self.num_speakers
            words = np.maximum(1, self.words_each * np.exp(1.5 * stats.norm.ppf(levels))).astype(np.int64)
        elif self.sizes == "one long":
            words[0] = round(1.5 * words[1:].sum())
        return words

    @property
    def setup(self) -> dict[str, object]:
        """What differs between worlds, by column of a table."""
        sds = " / ".join(f"{100 * sd:g}" for sd in (self.seed_sd, self.speaker_sd, self.taste_sd))
        speakers = f"{self.num_speakers} {self.sizes}"
        return {
            "seeds": self.num_seeds,
            "speakers": speakers,
            "sd of seed / speaker / taste": sds,
            "noisy": self.noisy,
            "unstable": self.unstable,
        }


WORLDS = [
    World(seed_sd, 0.03, taste_sd, num_seeds)
    for num_seeds in (2, 3, 5, 10, 20)
    for seed_sd, taste_sd in ((0.01, 0.0), (0.03, 0.03))
]
# on a large test set the seeds alone decide
NOISY = [
    World(0.01, 0.03, 0.0, num_seeds, num_speakers, noisy=noisy)
    for num_seeds, num_speakers in (*((num, 40) for num in (2, 3, 5, 10, 20)), *((num, 1000) for num in (2, 3, 5)))
    for noisy in (1, 2, 4)
]
UNSTABLE = [
    World(0.004, 0.03, 0.0, num_seeds, num_speakers=1000, unstable=unstable)
    for num_seeds in (2, 3, 5, 10)
    for unstable in (1, 2, 3)
]
SETS: tuple[tuple[int, Sizes], ...] = (
    *((few, "equal") for few in (3, 4, 8)),
    *((num, sizes) for num in (16, 100) for sizes in ("log-normal", "one long")),
)
UNEQUAL = [
    World(0.01, 0.03, taste_sd, num_seeds, num_speakers, sizes)
    for num_seeds in (2, 3, 5, 10, 20)
    for num_speakers, sizes in (SETS if num_seeds in (3, 5) else SETS[1::2])
    for taste_sd in (0.0, 0.03)
]
