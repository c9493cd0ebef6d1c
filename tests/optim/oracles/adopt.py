"""ADOPT's direction: Taniguchi et al. 2024, arXiv:2411.02853, algorithm 2, with clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, beta2_of


def adopt(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    if t == 1:
        state["m"], state["v"] = np.zeros_like(g), g**2
        return np.zeros_like(g)
    beta1, beta2, exponent = options["betas"][0], beta2_of(t, options), options["clip_exponent"]
    bound = np.inf if exponent is None else (t - 1) ** exponent
    divided = np.clip(g / np.maximum(np.sqrt(state["v"]), options["eps"]), -bound, bound)
    state["m"] = beta1 * state["m"] + (1 - beta1) * divided
    state["v"] = beta2 * state["v"] + (1 - beta2) * g**2
    return state["m"]
