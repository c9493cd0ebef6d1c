"""Luck in tuning: systems that are equally good, if tuned equally well; and a study that drops systems half-way."""

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
HALF_WAY = 3  # seeds after which systems are dropped
LOOK = ALPHA / 2  # level of each of two looks


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


def dropped(world: World, num: int, wers: list[float], seed: int = 0) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return whether a study that drops systems half-way has any false verdict, and how many systems it keeps (num,).

    Those that are told from the best after three seeds are dropped; the others are compared again with all seeds.
    """
    true, rng = np.array(wers), np.random.default_rng(seed)
    errors = world.errors(rng, num, true)
    false, kept = np.zeros(num, bool), np.zeros(num, np.int64)
    for table, own in enumerate(errors):
        first = _verdicts(own[:, :HALF_WAY], world.words, true)
        best = int(own[:, :HALF_WAY].sum((-2, -1)).argmin())
        left = [one for one in range(len(wers)) if (min(one, best), max(one, best)) not in first]
        last = _verdicts(own[left], world.words, true[left])
        false[table] = not (all(first.values()) and all(last.values()))
        kept[table] = len(left)
    return false, kept


def _verdicts(
    errors: NDArray[np.int64], words: NDArray[np.int64], true: NDArray[np.float64]
) -> dict[tuple[int, int], bool]:
    """Return the pairs that are found different, and whether that is right."""
    pairs = [*itertools.combinations(range(len(true)), 2)]
    if not pairs:
        return {}
    mean, found = compared(errors[None], words, pairs, LOOK)
    apart = found.adjusted[0] <= LOOK
    return {
        pair: bool(np.sign(mean[0, place]) == np.sign(true[pair[0]] - true[pair[1]]))
        for place, pair in enumerate(pairs)
        if apart[place]
    }


def halving_rows(num: int) -> Iterator[Mapping[str, object]]:
    """Yield how often a study that drops systems half-way errs, and how many systems are left."""
    worlds = (replace(TUNED, num_seeds=5), replace(TUNED, num_seeds=5, noisy=1))
    for world, (name, steps) in itertools.product(worlds, {"none": 0.0, "all, by steps": 0.02}.items()):
        false, kept = dropped(world, num, [WER + steps * place for place in range(8)])
        yield {
            "seeds": "3, then 5",
            "noisy": world.noisy,
            "which differ": name,
            "any false verdict": wrong(false),
            "systems kept of 8": f"{kept.mean():.1f}",
        }
