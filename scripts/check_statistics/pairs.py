"""Differences of all pairs of systems: verdicts and intervals, right together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from cells import ALPHA, Cell, wrong
from numpy.typing import NDArray
from worlds import WER, World

from asr.compare.statistics.estimate import estimate
from asr.compare.statistics.moderation import moderated, pooled_variance
from asr.compare.statistics.multiple_testing import Simultaneous, simultaneous

Bools = NDArray[np.bool_]
POWER = World(0.01, 0.03, 0.0, 3, num_speakers=1000)
REQUIRED_POWER = {(8, 3, 0): 0.35, (8, 5, 1): 0.8}  # of systems, seeds, unstable ones
BETTER = 0.03
NEARLY = 0.002  # a difference that can hardly be found


@dataclass(frozen=True)
class PairTables:
    """Simulated tables of M pairs; ``simultaneous`` has compared them.

    Attributes:
        pairs: of systems (M).
        true: differences (M).
        mean: estimated ones (tables, M).
        found: verdicts and intervals (tables, M).
    """

    pairs: Sequence[tuple[int, int]]
    true: NDArray[np.float64]
    mean: NDArray[np.float64]
    found: Simultaneous

    @cached_property
    def apart(self) -> Bools:
        """Pairs (tables, M) that are found different."""
        return self.found.adjusted <= ALPHA

    @cached_property
    def false(self) -> Bools:
        """Pairs (tables, M) that are found different although equal, or in the wrong direction."""
        return self.apart & (np.sign(self.mean) != np.sign(self.true))

    @property
    def any_wrong(self) -> Cell:
        """Share of tables with any false verdict or any interval that misses."""
        misses = (self.true < self.found.low) | (self.true > self.found.high)
        return wrong((misses | self.false).any(-1))

    @property
    def contradictions(self) -> Cell:
        """Share of tables in which any interval says something else than its verdict."""
        inside = (self.found.low < 0) & (self.found.high > 0)
        outside = (self.found.low > 0) | (self.found.high < 0)
        return Cell(float(np.where(self.apart, inside, outside).any(-1).mean()), len(self.apart), at_most=0.0)


def compared(
    errors: NDArray[np.int64],
    words: NDArray[np.int64],
    pairs: Sequence[tuple[int, int]],
    alpha: float = ALPHA,
) -> tuple[NDArray[np.float64], Simultaneous]:
    """Return mean differences (tables, M), and verdicts and intervals, of errors (tables, systems, seeds, speakers)."""
    alone = [estimate(errors[:, a] - errors[:, b], words) for a, b in pairs]
    together = moderated(alone, pooled_variance(errors.sum(-1) / words.sum()))
    return np.stack([one.mean for one in together], -1), simultaneous(together, alpha)


def pair_tables(
    world: World, num: int, wers: Sequence[float], *, only_with: int | None = None, seed: int = 0
) -> PairTables:
    """Compare systems of these true WERs ``num`` times, as a report does: all pairs, or those with one system."""
    rng, true = np.random.default_rng(seed), np.array(wers)
    pairs = [pair for pair in itertools.combinations(range(len(wers)), 2) if only_with in (None, *pair)]
    means, tables = [], []
    for errors in world.chunks(rng, num, true):
        mean, table = compared(errors, world.words, pairs)
        means.append(mean)
        tables.append(table)
    fields = zip(*((one.p_values, one.adjusted, one.low, one.high) for one in tables), strict=True)
    differences = np.array([true[a] - true[b] for a, b in pairs])
    return PairTables(pairs, differences, np.concatenate(means), Simultaneous(*map(np.concatenate, fields)))


def true_wers(num_systems: int) -> dict[str, list[float]]:
    """Return systems that are equal, and others of which some differ far, and some hardly."""
    half = num_systems // 2
    found = {"none": [WER] * num_systems}
    if num_systems > 2:
        found["two groups"] = [WER] * half + [2 * WER] * (num_systems - half)
        found["all but two, far"] = [WER, WER, *(WER + 0.05 * step for step in range(2, num_systems))]
        found["some, hardly"] = [WER] * half + [WER + NEARLY] * (num_systems - half)
    return found


def table_rows(
    worlds: Sequence[World],
    systems: Sequence[int],
    num: int,
    *,
    differing: Sequence[str] = ("none", "two groups", "all but two, far", "some, hardly"),
    only_with: int | None = None,
) -> Iterator[Mapping[str, object]]:
    """Yield a row per world, number of systems, and systems that differ; of all pairs, or those with one system."""
    for world, num_systems in itertools.product(worlds, systems):
        if world.noisy >= num_systems:
            continue
        for name, wers in true_wers(num_systems).items():
            if name not in differing:
                continue
            tables = pair_tables(world, num, wers, only_with=only_with)
            yield {
                **world.setup,
                "systems": num_systems,
                "which differ": name,
                "any false verdict": wrong(tables.false.any(-1)),
                "any verdict or interval wrong": tables.any_wrong,
                "verdict against interval": tables.contradictions,
            }


def power_rows(num: int) -> Iterator[Mapping[str, object]]:
    """Yield how often one better system of several is told from others that are equal."""
    for num_systems, num_seeds, unstable in ((2, 3, 0), (2, 5, 0), (8, 3, 0), (8, 5, 0), (8, 5, 1), (8, 10, 0)):
        wers = [WER, WER - BETTER, *[WER] * (num_systems - 2)]
        for only_with in (None, 0):
            # half the spread, so that hardly any rate of an unstable system is below 0
            world = replace(POWER, num_seeds=num_seeds, unstable=unstable, seed_sd=POWER.seed_sd / (1 + unstable))
            tables = pair_tables(world, num, wers, only_with=only_with)
            own = tables.apart[:, tables.true != 0]
            required = REQUIRED_POWER.get((num_systems, num_seeds, unstable)) if only_with is None else None
            yield {
                "systems": num_systems,
                "seeds": num_seeds,
                "unstable": unstable,
                "pairs": "all" if only_with is None else "with the baseline",
                "told from a given one": Cell(float(own.mean()), num),
                "told from any other": Cell(float(own.any(-1).mean()), num, at_least=required),
            }
