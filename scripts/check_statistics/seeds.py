"""Verdicts over seeds alone: times to a target, which some runs never reach, and WERs after the same time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cells import ALPHA, Cell
from numpy.typing import NDArray

from asr.compare.statistics.moderation import moderated, pooled_variance
from asr.compare.statistics.multiple_testing import simultaneous
from asr.compare.statistics.pairs import paired_estimate

FIELDS = ("mean", "seed_variance", "test_variance", "seed_freedom")  # of an estimate, (tables,)
BATCH_SD = 0.1  # what a seed adds to all systems
FAR = 20.0


@dataclass(frozen=True)
class Numbers:
    """A number that each run has, of which smaller is better.

    Attributes:
        what: it is.
        sd: between seeds of a system.
        censored: share of the runs that do not reach the target, and count with the largest number that any has.
        grain: the numbers are multiples of it.
        noisy: systems whose seeds vary more, with ten times the variance.
    """

    what: str
    sd: float = 0.15
    censored: float = 0.0
    grain: float = 1e-3
    noisy: int = 0

    def drawn(self, num: int, means: Sequence[float], num_seeds: int) -> NDArray[np.float64]:
        """Draw numbers (num, systems, seeds) of systems with these means."""
        rng = np.random.default_rng([len(means), num_seeds, int(100 * self.censored)])
        drawn = rng.normal(0, self.sd, (num, len(means), num_seeds))
        drawn[:, : self.noisy] *= np.sqrt(10)
        drawn += rng.normal(0, BATCH_SD, (num, 1, num_seeds)) + np.reshape(means, (-1, 1))
        return np.round(np.minimum(drawn, np.quantile(drawn, 1 - self.censored)) / self.grain) * self.grain


KINDS = (
    *(Numbers("log time", censored=censored) for censored in (0.0, 0.3, 0.6)),
    Numbers("log time", noisy=1),
    *(Numbers("WER at equal time", sd=0.01, grain=grain) for grain in (0.0005, 0.01)),
)


def any_wrong(numbers: Numbers, num: int, means: Sequence[float], num_seeds: int) -> Cell:
    """Return how often any verdict or interval is wrong; where runs are censored, those of equal systems."""
    drawn = numbers.drawn(num, means, num_seeds)
    never = (drawn == drawn.max()).all(-1) & (numbers.censored > 0)
    pairs = np.array([*itertools.combinations(range(len(means)), 2)])
    alone = [paired_estimate(drawn[:, a] - drawn[:, b], numbers.grain) for a, b in pairs]
    together = moderated(alone, pooled_variance(drawn))
    # systems that never reach the target are not compared with each other
    are_compared = ~never[:, pairs].all(-1)
    true = np.subtract(*np.asarray(means)[pairs].T)
    num_wrong = 0
    for used in np.unique(are_compared, axis=0):
        if not used.any():
            continue
        tables = (are_compared == used).all(-1)
        chosen = [
            replace(one, **{name: getattr(one, name)[tables] for name in FIELDS})
            for one in itertools.compress(together, used)
        ]
        found = simultaneous(chosen, ALPHA)
        mean, own = np.stack([one.mean for one in chosen], -1), true[used]
        false = (found.adjusted <= ALPHA) & (np.sign(mean) != np.sign(own))
        misses = (own < found.low) | (own > found.high)
        # what a censored difference truly is, is known of equal systems alone
        num_wrong += int(((false | misses) & ((numbers.censored == 0) | (own == 0))).any(-1).sum())
    return Cell(num_wrong / num, num, at_most=ALPHA)


def seed_rows(
    num: int, seeds: Sequence[int] = (2, 3, 5, 10, 20), systems: Sequence[int] = (2, 3, 8)
) -> Iterator[Mapping[str, object]]:
    """Yield a row per number of seeds and systems and kind of number; all systems are equal, or all but two far off."""
    for num_seeds, num_systems, numbers in itertools.product(seeds, systems, KINDS):
        for far in {0, num_systems - 2}:
            means = [0.0] * (num_systems - far) + [FAR] * far
            yield {
                "seeds": num_seeds,
                "systems": num_systems,
                "number": numbers.what,
                "never there %": 100 * numbers.censored,
                "grain": numbers.grain,
                "noisy": numbers.noisy,
                "far off": far,
                "any verdict or interval wrong": any_wrong(numbers, num, means, num_seeds),
            }
