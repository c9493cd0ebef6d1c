"""What is found, beside what other methods find on the same tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from cells import ALPHA, Cell, Row, cell
from numpy.typing import NDArray
from scipy import stats
from tables import collected, judge, judge_world
from worlds import System, World

from asr.compare.statistics.power import detectable

Array = NDArray[np.float64]
RESAMPLED = 4000  # of the bootstrap
NOISE_TABLES = 1000  # that tell how much a difference varies
TEN = World([System()] * 10, 5)  # 10 systems, whose log WER varies by 0.2, on 40 speakers
TARGETS = ((0.45, 5, "9"), (0.33, 9, "18"), (0.26, 18, "> 30"))  # fewer errors, seeds, and seeds of the former method
# in standard deviations over seeds, at 95 %: the former method, which tested all pairs of 2 or 8 systems
FORMER = {3: (4.6, 9.0), 4: (3.0, 5.0), 5: (2.4, 3.8), 10: (1.4, 2.1), 20: (0.9, 1.4)}


def better(world: World, fewer: float) -> World:
    """Return the world with one system, the second, that makes fewer errors than it did."""
    first, second, *others = world.systems
    return replace(world, systems=(first, replace(second, rate=second.rate * (1 - fewer)), *others))


def target_rows(num: int) -> Iterator[Row]:
    """Yield how often one better system of ten is found better than the baseline."""
    for fewer, num_seeds, former in TARGETS:
        tables = judge_world(better(replace(TEN, num_seeds=num_seeds), fewer), num, with_best=False)
        yield {
            "fewer errors": f"{100 * fewer:g} %",
            "seeds": num_seeds,
            "seeds of the former method": former,
            "found": cell(collected(tables, lambda one: one.verdicts()[:, 0] == -1), at_least=0.8),
        }


def seed_rows(num: int) -> Iterator[Row]:
    """Yield which difference of two systems is said to be found in 80 of 100, and how often it is; at 95 %."""
    for num_seeds, former in FORMER.items():
        for num_systems, former_sds in zip((2, 8), former, strict=True):
            world = World([System(seed_sd=0.1)] * num_systems, num_seeds, words_each=1000)
            alpha = 0.05 / (num_systems - 1)
            some = world.contrasts(world.errors(np.random.default_rng(1), NOISE_TABLES)).estimate(1, 0)
            variances = {name: getattr(some, name).mean() for name in ("seed_variance", "test_variance")}
            freedom = np.median(some.seed_freedom)
            needed = detectable(replace(some, mean=np.zeros(()), seed_freedom=freedom, **variances), alpha)
            found = judge_world(better(world, 1 - np.exp(-needed)), num, with_best=False)
            yield {
                "seeds": num_seeds,
                "systems": num_systems,
                "found in 80 of 100, standard deviations": f"{needed / 0.1:.1f}",
                "of the former method, all pairs": former_sds,
                "found": cell(collected(found, lambda one: one.verdicts(0.05)[:, 0] == -1)),
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
            for fewer, num_seeds, _ in TARGETS
        },
    }
    for name, world in worlds.items():
        is_null = not world.truth.any()
        errors = world.errors(np.random.default_rng(0), num_of_rivals)
        logs = world.contrasts(errors).values
        row: dict[str, object] = {"world": name, "counted": "any false verdict" if is_null else "the better is found"}
        own = judge(world.contrasts(world.errors(np.random.default_rng(0), num)), with_best=False).verdicts()
        row["this method"] = _counted(own != 0, is_null)
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
