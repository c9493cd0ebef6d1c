"""AdamW's direction: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, mean_square


def adamw(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    beta1 = options["betas"][0]
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    return state["m"] / (1 - beta1**t) / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])
