"""Schedule-Free AdamW: Defazio et al. 2024, arXiv:2405.15682, algorithm 1, with all three sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State


def schedule_free_adamw(y: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return what `step` makes the next y of."""
    (beta1, beta2), eps, decay = options["betas"], options["eps"], options["weight_decay"]
    warmup_steps = options["warmup_steps"]
    lr = options["lr"] * (t / warmup_steps if t < warmup_steps else 1.0)
    x, z = state.get("x", y), state.get("z", y)
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g**2
    v_hat = state["v"] / (1 - beta2**t)
    z = z - lr * g / (np.sqrt(v_hat) + eps) - lr * decay * y
    state["lr_max"] = max(lr, state.get("lr_max", 0.0))
    weight = t ** options["r"] * state["lr_max"] ** options["weight_lr_power"]
    state["weight_sum"] = state.get("weight_sum", 0.0) + weight
    c = weight / state["weight_sum"]
    state["x"], state["z"] = (1 - c) * x + c * z, z
    # the rule moves y by itself; `step` will decay y and subtract lr times what is returned
    return (y * (1 - lr * decay) - ((1 - beta1) * z + beta1 * state["x"])) / lr
