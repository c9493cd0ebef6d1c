"""Schedule-Free AdamW: Defazio et al. 2024, arXiv:2405.15682, algorithm 1, with all three sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, mean_square


def divided_by_rms(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    return g / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])


def schedule_free(y: Array, u: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the next y."""
    beta, warmup_steps = options["betas"][0], options["warmup_steps"]
    lr = options["lr"] * (t / warmup_steps if t < warmup_steps else 1.0)
    x, z = state.get("x", y), state.get("z", y)
    z = z - lr * (u + options["weight_decay"] * y)
    state["lr_max"] = max(lr, state.get("lr_max", 0.0))
    weight = t ** options["r"] * state["lr_max"] ** options["weight_lr_power"]
    state["weight_sum"] = state.get("weight_sum", 0.0) + weight
    c = weight / state["weight_sum"]
    state["x"], state["z"] = (1 - c) * x + c * z, z
    return (1 - beta) * z + beta * state["x"]
