"""RMSprop's direction: Tieleman and Hinton 2012, lecture 6.5, with an average that is free of bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, mean_square


def rmsprop(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
    return g / np.maximum(np.sqrt(mean_square(g, state, t, options)), options["eps"])
