"""Whether any systems differ at all, over seeds: one test for the whole table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from asr.evaluation.comparison.result import Omnibus


def omnibus(systems: Mapping[str, NDArray[np.float64]]) -> Omnibus:
    """Test that K systems have the same WER over seeds on this very test set; other speakers are not part of it.

    Friedman's test ranks the systems on each seed and takes no variances for equal. With few seeds it is careful: its p
    cannot be below 5 % with two seeds and fewer than nine systems. F is for information: with one of eight systems
    varying ten times as much it raises false alarms in 9 to 12 of 100 comparisons.

    Args:
        systems: WERs (S,) by name, on the same seeds: at least three systems and two seeds.

    Reference:
        Demšar 2006, "Statistical comparisons of classifiers over multiple data sets", Journal of Machine Learning
        Research 7, 1-30, section 3.2.2, for Friedman's test on ranks. Differs: blocks are seeds, not data sets.
    """
    wers = np.stack(list(systems.values()))
    num_systems, num_seeds = wers.shape
    residuals = wers - wers.mean(1, keepdims=True) - wers.mean(0) + wers.mean()
    freedom = num_systems - 1, (num_systems - 1) * (num_seeds - 1)
    explained = num_seeds * np.square(wers.mean(1) - wers.mean()).sum() / freedom[0]
    unexplained = np.square(residuals).sum() / freedom[1]
    # no ranks if all systems agree on every seed
    alike = bool((wers == wers[0]).all())
    friedman = 1.0 if alike else float(stats.friedmanchisquare(*wers).pvalue)
    return Omnibus(
        systems=tuple(systems),
        num_seeds=num_seeds,
        friedman_p=friedman,
        f_p=float(stats.f.sf(explained / unexplained, *freedom)) if unexplained else float(explained == 0),
    )
