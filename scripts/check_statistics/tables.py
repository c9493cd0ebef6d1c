"""Simulated comparisons: verdicts, intervals, and which systems may be the best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from cells import ALPHA, Row, cell, repeated
from numpy.typing import NDArray
from worlds import World, covered_worlds, excluded_worlds

from werdict.statistics.contrasts import Contrasts, Decisions, decide, may_be_best

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)
SIZES = tuple(itertools.product((3, 5, 10), (2, 5, 10, 20)))  # seeds, systems


@dataclass(frozen=True)
class Tables:
    """R comparisons of K systems, judged as a report does.

    Attributes:
        mean: of each system's difference from the baseline (R, K - 1).
        decisions: on these.
        best: whether a system may be the best (R, K), at the level ``1 - ALPHA`` and at 95 %.
    """

    mean: Array
    decisions: Decisions
    best: tuple[Bools, Bools]

    def verdicts(self, alpha: float = ALPHA) -> NDArray[np.int64]:
        """Return -1 for better than the baseline, 1 for worse, and 0 (R, K - 1)."""
        return np.where(self.decisions.adjusted <= alpha, np.sign(self.mean), 0).astype(np.int64)


def judge(contrasts: Contrasts, *, with_best: bool = True, alpha: float = ALPHA) -> Tables:
    """Compare each system with the first, and with ``with_best`` with each other one."""
    systems = range(contrasts.values.shape[1])
    estimates = [contrasts.estimate(system, 0) for system in systems[1:]]
    against = {
        str(system): [contrasts.estimate(other, system).reversed() for other in systems if other != system]
        for system in systems
        if with_best
    }
    best = [np.stack([*may_be_best(against, level).values()], -1) for level in (alpha, 0.05) if with_best]
    everywhere = np.ones(contrasts.values.shape[:2], bool)
    mean = np.stack([estimate.mean for estimate in estimates], -1)
    return Tables(mean, decide(estimates, alpha), (best[0], best[1]) if best else (everywhere, everywhere))


def judge_world(world: World, num: int, seed: int = 0, *, with_best: bool = True) -> list[Tables]:
    """Simulate and judge ``num`` tables."""
    return [judge(one, with_best=with_best) for one in world.chunks(np.random.default_rng(seed), num)]


def collected(tables: Sequence[Tables], of: Callable[[Tables], NDArray[Scalar]]) -> NDArray[Scalar]:
    """Return one array of all tables."""
    return np.concatenate([of(one) for one in tables])


def claims(name: str, world: World, num: int, seed: int = 0, *, is_covered: bool = True) -> Row:
    """Return how often each claim is wrong; of several systems that are best, the one that is left out most counts."""
    tables, true = judge_world(world, num, seed), world.truth
    allowed = (ALPHA, 0.05) if is_covered else (None, None)

    def any_false(alpha: float) -> Bools:
        verdicts = collected(tables, lambda one: one.verdicts(alpha))
        return np.any((verdicts != 0) & (verdicts != np.sign(true[1:])), axis=-1)

    def any_miss(one: Tables) -> Bools:
        return np.any((true[1:] < one.decisions.low) | (true[1:] > one.decisions.high), axis=-1)

    def missing(level: int) -> Bools:
        """Each kind of system that is best, averaged over those of its kind, which are alike by design."""
        left_out = ~collected(tables, lambda one: one.best[level])
        kinds = {system for system, value in zip(world.systems, true, strict=True) if value == true.min()}
        places = [[place for place, system in enumerate(world.systems) if system == kind] for kind in kinds]
        return max((left_out[:, place] for place in places), key=np.mean)

    best = missing(0), missing(1)
    return {
        "world": name,
        "systems": len(world.systems),
        "seeds": world.num_seeds,
        "repetitions": num,
        "any false verdict": cell(any_false(ALPHA), allowed[0]),
        "any interval misses": cell(collected(tables, any_miss), allowed[0]),
        "best is not in its set": cell(best[0].mean(-1), allowed[0]),
        "systems in the set": f"{collected(tables, lambda one: one.best[0].sum(-1)).mean():.1f}",
        "any false verdict, 95 %": cell(any_false(0.05), allowed[1]),
        "best is not in its set, 95 %": cell(best[1].mean(-1), allowed[1]),
    }


def claim_rows(num: int, sizes: Sequence[tuple[int, int]] = SIZES, names: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row per world that the claims cover, number of seeds, and number of systems."""
    for num_seeds, num_systems in sizes:
        for name, world in covered_worlds(num_systems, num_seeds):
            if not names or name in names:
                yield repeated(partial(claims, name, world), num)


def excluded_rows(num: int, sizes: Sequence[tuple[int, int]] = ((5, 2), (5, 10), (10, 10))) -> Iterator[Row]:
    """Yield what happens where only one system fails."""
    for num_seeds, num_systems in sizes:
        for name, world in excluded_worlds(num_systems, num_seeds):
            yield claims(name, world, num, is_covered=False)
