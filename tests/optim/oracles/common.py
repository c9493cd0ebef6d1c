"""What surrounds every rule of the HeavyBall family, in slow float64 NumPy; see `optim.composable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = dict[str, Any]
Rule = Callable[[Array, Array, State, int, Mapping[str, Any]], Array]
"""Returns the direction u of a step: (p, g, state, t from 1, options) → u; may change state."""


def step(rule: Rule, p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the parameter after the t-th step.

    Args:
        rule: makes a direction of a gradient.
        p: the parameter; not modified.
        g: its gradient; not modified.
        state: what rule and options keep; {} before the first step.
        t: number of the step, from 1.
        options: all of the optimizer's, its defaults included.
    """
    warmup_steps = options["warmup_steps"]
    lr = options["lr"] * (t / warmup_steps if t < warmup_steps else 1.0)
    u = rule(p, g, state, t, options)
    return p * (1 - lr * options["weight_decay"]) - lr * u
