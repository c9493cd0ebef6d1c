"""What is found, beside what other methods find on the same tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
from cells import AGAIN, ALPHA, Cell, Row, cell, repeated
from numpy.typing import NDArray
from scipy import stats
from seeds import at_rows
from tables import Tables, collected, judge, judge_world
from worlds import System, World

from werdict.formatting import UNKNOWN
from werdict.result import Scale
from werdict.statistics.contrasts import Contrasts, decide
from werdict.statistics.estimate import Estimate
from werdict.statistics.judge import detectable

Array = NDArray[np.float64]
RESAMPLED = 4000  # of the bootstrap
NOISE_TABLES = 1000  # that tell how much a difference varies
TEN = World([System()] * 10, 5)  # 10 systems, whose log WER varies by 0.2, on 40 speakers
LOOKS = (5, 10)  # seeds
TARGETS = ((0.45, 5), (0.33, 9), (0.26, 18))  # fewer errors, seeds


def better(world: World, fewer: float) -> World:
    """Return the world with one system, the second, that makes fewer errors than it did."""
    first, second, *others = world.systems
    return replace(world, systems=(first, replace(second, rate=second.rate * (1 - fewer)), *others))


def target_rows(num: int) -> Iterator[Row]:
    """Yield how often one better system of ten is found better than the baseline, with four times the repetitions."""
    for fewer, num_seeds in TARGETS:
        tables = judge_world(better(replace(TEN, num_seeds=num_seeds), fewer), AGAIN * num, with_best=False)
        yield {
            "fewer errors": f"{100 * fewer:g} %",
            "seeds": num_seeds,
            "found": cell(collected(tables, lambda one: one.verdicts()[:, 0] == -1), at_least=0.8),
        }


def seed_rows(num: int) -> Iterator[Row]:
    """Yield which difference of two systems is said to be found in 80 of 100, and how often it is; at 95 %."""
    for num_seeds, num_systems in itertools.product((3, 4, 5, 10, 20), (2, 8)):
        world = World([System(seed_sd=0.1)] * num_systems, num_seeds, words_each=1000)
        alpha = 0.05 / (num_systems - 1)
        some = world.contrasts(world.errors(np.random.default_rng(1), NOISE_TABLES)).estimate(1, 0)
        needed = detectable(_typical(some), alpha)
        found = judge_world(better(world, 1 - np.exp(-needed)), num, with_best=False)
        yield {
            "seeds": num_seeds,
            "systems": num_systems,
            "found in 80 of 100, standard deviations": f"{needed / 0.1:.1f}",
            "found": cell(collected(found, lambda one: one.verdicts(0.05)[:, 0] == -1)),
        }


def _typical(some: Estimate) -> Estimate:
    variances = {name: getattr(some, name).mean() for name in ("seed_variance", "test_variance")}
    own, freedom = some.own and _typical(some.own), np.median(some.seed_freedom)
    return replace(some, mean=np.zeros(()), seed_freedom=freedom, own=own, **variances)


def scale_rows(num: int) -> Iterator[Row]:
    """Yield how many of nine differences are found on either scale, where seeds vary alike in points, or in ratios."""
    rates = (0.2, 0.05, 0.08, 0.11, 0.14, 0.17, 0.23, 0.26, 0.29, 0.35)
    worlds = {
        "by 3 points": World([System(rate, 0.03) for rate in rates], 5, noise="points", speaker_sd=0.03),
        "by 20 % of the rate": World([System(rate) for rate in rates], 5),
    }
    for name, world in worlds.items():
        row: dict[str, object] = {"seeds vary": name}
        for scale in get_args(Scale):
            tables = judge_world(replace(world, scale=scale), num, with_best=False)
            row[f"found of 9, {scale}"] = f"{(collected(tables, Tables.verdicts) != 0).sum(-1).mean():.1f}"
        yield row


def look_rows(num: int) -> Iterator[Row]:
    """Yield what two looks find, at five seeds of all systems and ten of the open ones, beside ten seeds of all."""
    worlds = {
        "equal": TEN,
        "one makes 33 % fewer": better(TEN, 0.33),
        "one makes 33 % fewer, five twice as many": better(World([*TEN.systems[:5], *[System(0.6)] * 5], 5), 0.33),
    }
    for name, world in worlds.items():
        yield repeated(partial(_two_looks, name, replace(world, num_seeds=LOOKS[1])), num)


def _two_looks(name: str, world: World, num: int, seed: int) -> Row:
    true, half = np.sign(world.truth[1:]), ALPHA / 2
    false, by_two, by_ten, is_open = [], [], [], []
    for whole in world.chunks(np.random.default_rng(seed), num):
        assert whole.moves is not None
        assert isinstance(whole.resolution, np.ndarray)
        early = replace(whole, values=whole.values[..., : LOOKS[0]], moves=whole.moves[..., : LOOKS[0], :])
        first = judge(early, alpha=half)
        goes_on = np.insert(first.best[0][:, 1:] | (first.verdicts(half) == 0), 0, True, axis=-1)
        looks = np.stack([first.verdicts(half)] * 2)
        for going in np.unique(goes_on, axis=0):
            rows, places = (goes_on == going).all(-1), np.cumsum(going) - 1
            values, resolution, moves = (part[rows][:, going] for part in (whole.values, whole.resolution, whole.moves))
            late = Contrasts(values, resolution, moves, whole.effective_units)
            estimates = [
                late.estimate(places[system], 0) if going[system] else at_rows(early.estimate(system, 0), rows)
                for system in range(1, len(going))
            ]
            signs = np.sign(np.stack([estimate.mean for estimate in estimates], -1))
            looks[1, rows] = np.where(decide(estimates, half).adjusted <= half, signs, 0)
        false.append(((looks != 0) & (looks != true)).any((0, -1)))
        by_two.append((looks == true).any(0)[:, true != 0])
        by_ten.append((judge(whole, with_best=False).verdicts() == true)[:, true != 0])
        is_open.append(goes_on)
    runs = LOOKS[0] + (LOOKS[1] - LOOKS[0]) * np.concatenate(is_open).mean()
    found = [cell(np.concatenate(one)) if true.any() else UNKNOWN for one in (by_two, by_ten)]
    return {
        "world": name,
        "any false verdict of two looks": cell(np.concatenate(false), ALPHA),
        "differences found by two looks": found[0],
        "by ten seeds": found[1],
        "runs, % of ten seeds": f"{100 * runs / LOOKS[1]:.0f}",
    }


def rival_rows(num: int, num_of_rivals: int) -> Iterator[Row]:
    """Yield what this method and others find on the same tables of ten systems over five seeds, against the baseline.

    Dunnett's test is that of log WERs, of one variance for all; the bootstrap is stratified by system, over seeds, with
    percentile intervals after Bonferroni; Games and Howell compare all pairs.
    """
    calm, wild = System(0.05, 0.1), System(0.05, 0.5)
    worlds = {
        "equal": TEN,
        "another varies × 5": World([calm] * 9 + [wild], 5),
        "baseline varies × 5": World([wild] + [calm] * 9, 5),
        **{
            f"one makes {100 * fewer:g} % fewer, {num_seeds} seeds": better(replace(TEN, num_seeds=num_seeds), fewer)
            for fewer, num_seeds in TARGETS
        },
    }
    for name, world in worlds.items():
        is_null = not world.truth.any()
        errors = world.errors(np.random.default_rng(0), num_of_rivals)
        logs = world.contrasts(errors).values
        row: dict[str, object] = {"world": name, "counted": "any false verdict" if is_null else "the better is found"}
        verdicts = judge(world.contrasts(world.errors(np.random.default_rng(0), num)), with_best=False).verdicts()
        row["this method"] = _counted(verdicts != 0, is_null)
        for method, significant in RIVALS.items():
            row[method] = _counted(np.array([significant(table) for table in logs]), is_null)
        yield row


def _counted(found: NDArray[np.bool_], is_null: bool) -> Cell:
    return cell(np.any(found, axis=-1) if is_null else found[:, 0])


def dunnett(logs: Array) -> NDArray[np.bool_]:
    """Return which systems (K - 1,) differ from the first, of log WERs (K, S)."""
    return np.asarray(stats.dunnett(*logs[1:], control=logs[0], rng=0).pvalue <= ALPHA)


def bootstrap(logs: Array) -> NDArray[np.bool_]:
    """Resample the seeds of each system, as rliable does."""
    num_systems, num_seeds = logs.shape
    drawn = np.random.default_rng(0).integers(num_seeds, size=(num_systems, RESAMPLED, num_seeds))
    means = np.take_along_axis(logs[:, None], drawn, -1).mean(-1)
    tail = ALPHA / (num_systems - 1) / 2
    low, high = np.quantile(means[1:] - means[0], (tail, 1 - tail), axis=-1)
    return np.asarray((low > 0) | (high < 0))


def games_howell(logs: Array) -> NDArray[np.bool_]:
    """Compare all pairs, each with its own variances."""
    return np.asarray(stats.tukey_hsd(*logs, equal_var=False).pvalue[1:, 0] <= ALPHA)


RIVALS: dict[str, Callable[[Array], NDArray[np.bool_]]] = {
    "Dunnett": dunnett,
    "bootstrap over seeds": bootstrap,
    "Games and Howell": games_howell,
}
