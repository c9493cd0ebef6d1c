"""Runs that never learned, or never finished: counted and tested apart from the error rates of those that did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from asr.evaluation.comparison.inputs.runs import Run
from asr.evaluation.comparison.result import Reliability
from asr.evaluation.comparison.statistics.multiple_testing import holm

LEARNED = 1.0  # below this WER: a system that writes nothing has as many errors as there are words


def learned_runs(runs: Mapping[str, Sequence[Run]], test_set: str) -> dict[str, list[Run]]:
    """Return the runs that learned, by system: any other would decide a mean, and says nothing of the rest."""
    return {system: [run for run in own if run.sets[test_set].wer < LEARNED] for system, own in runs.items()}


def reliabilities(counts: Mapping[str, tuple[int, int]]) -> dict[str, Reliability]:
    """Compare each system's share of runs that learned with the highest share of any.

    Args:
        counts: runs that learned, and all runs, by system.

    Returns:
        By system, with p-values of Fisher's exact test, corrected for all of them; None for the highest itself.
    """
    best = max(counts, key=lambda name: (counts[name][0] / counts[name][1], counts[name][1]))
    others = [name for name in counts if name != best]
    tables = [[(learned, total - learned) for learned, total in (counts[best], counts[name])] for name in others]
    p_values = holm(np.array([float(stats.fisher_exact(table).pvalue) for table in tables]))
    adjusted = dict(zip(others, p_values.tolist(), strict=True))
    return {name: Reliability(learned, total, adjusted.get(name)) for name, (learned, total) in counts.items()}
