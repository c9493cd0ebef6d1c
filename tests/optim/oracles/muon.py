"""Muon, MuonLaProp and NorMuon.

Jordan et al. 2024, kellerjordan.github.io/posts/muon; Ziyin et al. 2020, arXiv:2002.04839; Li et al. 2025,
arXiv:2510.05491, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State
from tests.optim.oracles.elementwise import laprop
from tests.optim.oracles.orthogonal import by_matrix, orthogonal, resized


def muon(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return Muon's direction of a step."""
    u = _momentum(g, state, options)
    return u if p.ndim < 2 else by_matrix(u, options, lambda m: resized(orthogonal(m, options), options))


def muon_laprop(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step that orthogonalizes LaProp's."""
    u = laprop(p, g, state, t, options)
    return u if p.ndim < 2 else by_matrix(u, options, lambda m: resized(orthogonal(m, options), options))


def nor_muon(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return NorMuon's direction of a step."""
    u = _momentum(g, state, options)
    if p.ndim < 2:
        return u
    beta2, places = options["betas"][1], iter(range(u.size))

    def normalized(m: Array) -> Array:
        o, key = orthogonal(m, options), f"v{next(places)}"
        state[key] = beta2 * state.get(key, 0) + (1 - beta2) * (o**2).mean(1)
        o = o / (np.sqrt(state[key])[:, None] + options["eps"])
        # an orthogonal matrix has the norm √min(rows, cols)
        return resized(np.sqrt(min(o.shape)) / np.linalg.norm(o) * o, options)

    return by_matrix(u, options, normalized)


def _momentum(g: Array, state: State, options: Mapping[str, Any]) -> Array:
    beta1 = options["betas"][0]
    state["s"] = beta1 * state.get("s", 0) + g
    return g + beta1 * state["s"] if options["nesterov"] else state["s"]
