"""Lion's direction: Chen et al. 2023, arXiv:2302.06675, algorithm 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State


def lion(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    (beta1, beta2), m = options["betas"], state.get("m", np.zeros_like(g))
    state["m"] = beta2 * m + (1 - beta2) * g
    return np.sign(beta1 * m + (1 - beta1) * g)
