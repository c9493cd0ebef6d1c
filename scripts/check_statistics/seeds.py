"""Numbers without a test set: times to a target, which some runs never reach, and WERs after the same time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from cells import ALPHA, Row, cell, repeated
from numpy.typing import NDArray
from tables import judge

from werdict.statistics.contrasts import Contrasts, decide
from werdict.statistics.estimate import Estimate

FIELDS = ("mean", "seed_variance", "test_variance", "seed_freedom")  # of an estimate, (R,)
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
        factor: by which the baseline's seeds vary more.
    """

    what: str
    sd: float = 0.15
    censored: float = 0.0
    grain: float = 1e-3
    factor: float = 1.0

    def drawn(self, num: int, means: Sequence[float], num_seeds: int, seed: int = 0) -> NDArray[np.float64]:
        """Draw numbers (num, K, S) of systems with these means."""
        rng = np.random.default_rng([len(means), num_seeds, int(100 * self.censored), seed])
        drawn = rng.normal(0, self.sd, (num, len(means), num_seeds))
        drawn[:, 0] *= self.factor
        drawn += rng.normal(0, BATCH_SD, (num, 1, num_seeds)) + np.reshape(means, (-1, 1))
        latest = np.quantile(drawn, 1 - self.censored)
        return np.round(np.minimum(drawn, latest) / self.grain) * self.grain


KINDS = (
    *(Numbers("log time", censored=censored) for censored in (0.0, 0.3, 0.6)),
    Numbers("log time", factor=3.0),
    *(Numbers("WER at equal time", sd=0.01, grain=grain) for grain in (0.0005, 0.01)),
)


def any_wrong(numbers: Numbers, means: Sequence[float], num_seeds: int, num: int, seed: int) -> NDArray[np.bool_]:
    """Return whether any verdict, and any interval, is wrong (2, num); where runs are censored, those of equal systems.

    What a censored difference truly is, is known of equal systems alone.
    """
    drawn = numbers.drawn(num, means, num_seeds, seed)
    never = (drawn == drawn.max()).all(-1) & (numbers.censored > 0)
    contrasts = Contrasts(drawn, numbers.grain)
    estimates = [contrasts.estimate(system, 0) for system in range(1, len(means))]
    true = np.subtract(means[1:], means[0])
    is_known = (numbers.censored == 0) | (true == 0)
    # systems that never reach the target are not compared with each other
    compared = ~(never[:, :1] & never[:, 1:])
    wrong = np.zeros((2, num), bool)
    for used in np.unique(compared, axis=0):
        if used.any():
            rows = (compared == used).all(-1)
            chosen = [at_rows(estimate, rows) for estimate in itertools.compress(estimates, used)]
            found, mean = decide(chosen, ALPHA), np.stack([estimate.mean for estimate in chosen], -1)
            false = (found.adjusted <= ALPHA) & (np.sign(mean) != np.sign(true[used]))
            misses = (true[used] < found.low) | (true[used] > found.high)
            wrong[:, rows] = (np.stack([false, misses]) & is_known[used]).any(-1)
    return wrong


def at_rows(estimate: Estimate, rows: NDArray[np.bool_]) -> Estimate:
    """Return the estimates of some tables."""
    fields = {name: getattr(estimate, name)[rows] for name in FIELDS}
    return replace(estimate, **fields, own=estimate.own and at_rows(estimate.own, rows))


def _row(numbers: Numbers, means: Sequence[float], num_seeds: int, num: int, seed: int) -> Row:
    best = judge(Contrasts(numbers.drawn(num, means, num_seeds, seed), numbers.grain)).best[0]
    false, misses = any_wrong(numbers, means, num_seeds, num, seed)
    return {
        "number": numbers.what,
        "systems": len(means),
        "seeds": num_seeds,
        "never there %": 100 * numbers.censored,
        "grain": numbers.grain,
        "baseline varies ×": numbers.factor,
        "far off": sum(mean > 0 for mean in means),
        "any false verdict": cell(false, ALPHA),
        "any interval misses": cell(misses, ALPHA),
        "best is not in its set": cell(~best[:, 0], ALPHA),
    }


def time_rows(
    num: int, seeds: Sequence[int] = (3, 5, 10), systems: Sequence[int] = (2, 10), kinds: Sequence[Numbers] = KINDS
) -> Iterator[Row]:
    """Yield a row per number of seeds and systems and kind of number; all systems are equal, or half are far off."""
    for num_seeds, num_systems, numbers in itertools.product(seeds, systems, kinds):
        for far in sorted({0, num_systems // 2} if num_systems > 2 else {0}):
            means = [0.0] * (num_systems - far) + [FAR] * far
            yield repeated(partial(_row, numbers, means, num_seeds), num)
