"""Mean and deviation of features, without joining them in memory.

T frames, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]


def moments(matrices: Sequence[Matrix]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation (F,) over the frames of matrices (T, F), in float64."""
    num_frames = sum(map(len, matrices))
    mean = _sum(matrix.astype(np.float64) for matrix in matrices) / num_frames
    squares = _sum(np.square(matrix.astype(np.float64) - mean) for matrix in matrices)
    return mean, np.sqrt(squares / num_frames)


def _sum(matrices: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Add all frames one after the other, as numpy does in one long matrix."""
    total: NDArray[np.float64] | None = None
    for matrix in matrices:
        total = matrix.sum(axis=0) if total is None else np.vstack([total, matrix]).sum(axis=0)
    assert total is not None
    return total
