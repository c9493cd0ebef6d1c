"""Intervals of mean WERs, of one system and of the one that was chosen because its mean is the lowest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from cells import ALPHA, Cell, wrong
from worlds import WER, World

from asr.compare.statistics.estimate import estimate


def misses(world: World, num: int, wers: Sequence[float], *, corrected: bool = True, seed: int = 0) -> Cell:
    """Return how often the interval of the lowest mean of systems with these true WERs misses its true WER."""
    true, missed = np.array(wers), []
    for errors in world.chunks(np.random.default_rng(seed), num, true):
        chosen = errors.sum((-2, -1)).argmin(-1)
        found = estimate(errors[np.arange(len(errors)), chosen], world.words)
        low, high = found.interval(ALPHA, len(wers) if corrected else 1)
        missed.append((true[chosen] < low) | (true[chosen] > high))
    return wrong(np.concatenate(missed))


def mean_rows(worlds: Sequence[World], num: int) -> Iterator[Mapping[str, object]]:
    """Yield how often the interval of a single system misses."""
    for world in worlds:
        yield {**world.setup, "mean outside its interval": misses(world, num, [WER])}


def winner_rows(worlds: Sequence[World], num: int) -> Iterator[Mapping[str, object]]:
    """Yield how often the interval of the best system misses, and how often without its correction."""
    for world, num_systems, step in itertools.product(worlds, (2, 4, 8), (0.0, 0.003)):
        wers = [WER + step * place for place in range(num_systems)]
        yield {
            **world.setup,
            "systems": num_systems,
            "steps between": step,
            "best outside its interval": misses(world, num, wers),
            "without correction": Cell(misses(world, num, wers, corrected=False).share, num),
        }
