"""Luck in tuning: systems that are equally good, if tuned equally well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from cells import ALPHA, Cell, wrong
from numpy.typing import NDArray
from pairs import compared
from worlds import WER, World

TRIALS = 12
CURVATURE = 0.06  # of the WER over a range of settings from -1 to 1, the best at 0
TUNED = World(0.01, 0.03, 0.0, 5, num_speakers=100)


def chosen_wers(
    world: World, rng: np.random.Generator, num: int, num_systems: int, studies: int
) -> NDArray[np.float64]:
    """Return true WERs (num, systems, studies) of settings that look best of a study's trials, one run each."""
    places = rng.uniform(-1, 1, (num, num_systems, studies, TRIALS))
    true = WER + CURVATURE * places**2
    seen = true + world.seed_sd * rng.normal(size=true.shape)
    return np.take_along_axis(true, seen.argmin(-1)[..., None], -1)[..., 0]


def told_apart(world: World, num: int, num_systems: int, studies: int, seed: int = 0) -> NDArray[np.bool_]:
    """Return whether any two systems that are tuned alike are found different: one study, or one for each seed."""
    rng = np.random.default_rng(seed)
    wers = chosen_wers(world, rng, num, num_systems, studies)
    pairs = [*itertools.combinations(range(num_systems), 2)]
    _, found = compared(world.errors(rng, num, wers[..., None]), world.words, pairs)
    return np.asarray((found.adjusted <= ALPHA).any(-1))


def tuning_rows(num: int) -> Iterator[Mapping[str, object]]:
    """Yield how often systems that are tuned alike are found different; one study compares its settings alone."""
    for num_seeds, num_systems in itertools.product((2, 3, 5, 10, 20), (2, 4, 8)):
        world = replace(TUNED, num_seeds=num_seeds)
        yield {
            "seeds": num_seeds,
            "systems": num_systems,
            "one study": Cell(float(told_apart(world, num, num_systems, 1).mean()), num),
            "a study for each seed": wrong(told_apart(world, num, num_systems, num_seeds)),
        }
