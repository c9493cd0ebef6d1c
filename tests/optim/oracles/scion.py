"""Scion: Pethick et al. 2025, arXiv:2502.07529, and the authors' github.com/LIONS-EPFL/scion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State
from tests.optim.oracles.orthogonal import by_matrix, orthogonal, resized


def scion(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    beta1, norm = options["beta1"], options["norm"]
    m = state["m"] = g if beta1 is None else beta1 * state.get("m", 0) + (1 - beta1) * g

    def ball(x: Array) -> Array:
        cols = x.shape[1]
        if norm == "sign":
            return np.sign(x) / cols
        if norm in ("row", "embedding"):
            length = np.linalg.norm(x, axis=1, keepdims=True)
            return x / length / np.sqrt(cols) if norm == "row" else x / length * np.sqrt(cols)
        return resized(orthogonal(x, options), options)

    if p.ndim >= 2:
        return options["scale"] * by_matrix(m, options, ball)
    return options["scale"] * (np.sign(m) if norm == "sign" else m / np.sqrt((m**2).mean()))
