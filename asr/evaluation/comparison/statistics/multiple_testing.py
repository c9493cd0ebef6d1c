"""Correction of p-values for the number of pairs that are tested on one test set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Pair = tuple[str, str]


def holm(p_values: Array) -> Array:
    """Adjust p-values (..., M): with M true hypotheses, any falls below α with a probability of at most α.

    Reference:
        Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
        65-70.
    """
    order = np.argsort(p_values, axis=-1)
    remaining = np.arange(p_values.shape[-1], 0, -1)
    raised = np.maximum.accumulate(np.take_along_axis(p_values, order, -1) * remaining, axis=-1)
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(raised, 1), -1)
    return adjusted
