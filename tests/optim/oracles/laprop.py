"""LaProp's direction: Ziyin et al. 2020, arXiv:2002.04839, algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, mean_square


def laprop(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    beta1 = options["betas"][0]
    divided = g / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * divided
    return state["m"] / (1 - beta1**t)
