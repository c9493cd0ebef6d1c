"""The benchmark's verdict on one entry: WER, and updates to a target, in two looks at an entry and the baseline."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from cells import Row, cell, repeated
from numpy.typing import NDArray
from tables import judge

from werdict.benchmark.rules import LEVEL, LOOKS
from werdict.benchmark.verdicts import TARGET_SHARE
from werdict.statistics.contrasts import Contrasts
from werdict.statistics.times import DevCurve

Array = NDArray[np.float64]
Signs = NDArray[np.int64]
POINTS = np.arange(1, 31) / 30  # of validations, shares of the budget
# losses on dev of AdamW on the task an4, at every eighth of the run
LOSSES = (4.1, 3.9, 3.2, 2.2, 1.75, 1.5, 1.38, 1.3, 1.27)
LOSS_NOISE = 0.01  # of the logarithm of each
WER, WORDS = 0.24, 773  # of AdamW on the test set of an4, which is the same for all runs
ALPHA = (1 - LEVEL) / len(LOOKS)


@dataclass(frozen=True)
class Race:
    """Runs of the baseline and of an entry.

    Attributes:
        sd: over seeds, of the logarithms of the WER and of the time in which a loss is reached.
        ratio: true ratio of the entry's WERs, and of its times, to the baseline's.
    """

    sd: float
    ratio: float = 1.0

    def verdicts(self, num: int, seed: int) -> tuple[Signs, Signs, Array]:
        """Compare them as the benchmark does.

        Returns:
            The verdict (num,) by WER, -1 for better than the baseline, that by updates, and the share of runs (num,)
            that reached the target.
        """
        rng = np.random.default_rng(seed)
        logs = np.log([[1.0], [self.ratio]]) + self.sd * rng.normal(size=(num, 2, LOOKS[-1]))
        errors = np.rint(WORDS * WER * np.exp(logs)).clip(max=WORDS)
        times = np.array([self._times(one) for one in learning_curve(logs, rng)])
        by_wer, by_updates = (
            two_looks(*(Contrasts(one[..., :look], resolution) for look in LOOKS))
            for one, resolution in ((np.log(errors / WORDS), 1 / errors.mean(-1)), (np.log(times), 1 / len(POINTS)))
        )
        return by_wer, by_updates, (times < 1).mean((-1, -2))

    def _times(self, losses: Array) -> Array:
        """Return shares of the budget (2, S) to the target, from losses (2, S, validations)."""
        target = float(np.median(losses[0, :, POINTS.searchsorted(TARGET_SHARE + 1e-9, side="right") - 1]))
        curves = (DevCurve(np.append(0.0, POINTS), np.append(own[0], own)) for own in losses.reshape(-1, len(POINTS)))
        return np.reshape([min(curve.first_time(target), 1.0) for curve in curves], losses.shape[:-1])


def two_looks(early: Contrasts, late: Contrasts) -> Signs:
    """Return verdicts (num,): of the first look, and of the second where it left the question open."""
    first, second = (judge(one, with_best=False, alpha=ALPHA).verdicts(ALPHA)[:, 0] for one in (early, late))
    return np.where(first != 0, first, second)


def learning_curve(logs: Array, rng: np.random.Generator) -> Array:
    """Return losses (..., validations) of runs that take as long as the baseline times exp(``logs``)."""
    places = np.minimum(POINTS / np.exp(logs[..., None]), 1.0)
    losses = np.exp(np.interp(places, np.linspace(0, 1, len(LOSSES)), np.log(LOSSES)))
    return losses * np.exp(LOSS_NOISE * rng.normal(size=losses.shape))


SPREADS = (0.05, 0.08, 0.12, 0.2)  # five runs of AdamW on an4: 0.08 of log WER, 0.12 of log updates


def race_rows(num: int) -> Iterator[Row]:
    """Yield how often an entry that equals the baseline is found different by either outcome."""

    def simulate(sd: float, num: int, seed: int) -> Row:
        by_wer, by_updates, reached = Race(sd).verdicts(num, seed)
        return {
            "sd over seeds %": f"{100 * sd:g}",
            "runs that reach the target %": f"{100 * reached.mean():.0f}",
            "false by WER": cell(by_wer != 0, 1 - LEVEL),
            "false by updates": cell(by_updates != 0, 1 - LEVEL),
            "false by either": cell((by_wer != 0) | (by_updates != 0), 2 * (1 - LEVEL)),
        }

    for sd in SPREADS:
        yield repeated(partial(simulate, sd), num)


def race_power_rows(num: int) -> Iterator[Row]:
    """Yield how often a better entry is found better than the baseline."""
    for sd, ratio in itertools.product(SPREADS, (0.9, 0.85, 0.75, 0.6)):
        by_wer, by_updates, _ = Race(sd, ratio).verdicts(num, 0)
        yield {
            "sd over seeds %": f"{100 * sd:g}",
            "errors, and updates": f"{ratio:g} of the baseline’s",
            "found by WER": cell(by_wer == -1),
            "found by updates": cell(by_updates == -1),
        }
