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
Ending = Rule
"""Returns the parameter after a step: (p, u, state, t from 1, options) → p; may change state."""


def step(
    rule: Rule,
    p: Array,
    g: Array,
    state: State,
    t: int,
    options: Mapping[str, Any],
    total_norm: float = 0.0,
    ending: Ending | None = None,
) -> Array:
    """Return the parameter after the t-th step.

    Args:
        rule: makes a direction of a gradient.
        p: the parameter; not modified.
        g: its gradient; not modified.
        state: what rule and options keep; before the first step the parameter's name, and what all parameters share.
        t: number of the step, from 1.
        options: all of the optimizer's, its defaults included.
        total_norm: of what `corrected` makes of all parameters' gradients.
        ending: moves the parameter by u in place of decay and lr.
    """
    c = clipped(corrected(g, state, options), options["gradient_clipping"], total_norm)
    state["previous"] = g
    u = clipped(rule(p, c, state, t, options), options["update_clipping"])
    if options["caution"]:
        kept = u * g > 0
        u = np.where(kept, u, 0) * u.size / max(1, kept.sum())
    if ending is not None:
        return ending(p, u, state, t, options)
    warmup_steps = options["warmup_steps"]
    lr = options["lr"] * (t / warmup_steps if t < warmup_steps else 1.0) * state.get("estimated_lr", 1.0)
    on_sphere = options["update_norm"] == "hyperball" and p.ndim >= 2
    if options["update_norm"] and p.ndim >= 2:  # Wen et al. 2026, arXiv:2606.16899
        size = max(np.sqrt(np.mean(p**2)), options["min_param_rms"])
        size = state.setdefault("radius", size) if on_sphere else size
        u = u * size / max(np.sqrt(np.mean(u**2)), 1e-30)
    if on_sphere:
        moved = p - lr * u
        return moved * size / np.sqrt(np.mean(moved**2))
    decays = u * p >= 0 if options["cautious_weight_decay"] else np.full(p.shape, True)
    # Defazio 2025, arXiv:2506.02285, AdamC
    ratio = lr / (options["max_lr"] or options["lr"]) if options["corrected_weight_decay"] else 1.0
    return p - lr * ratio * options["weight_decay"] * np.where(decays, p, 0) - lr * u


def corrected(g: Array, state: State, options: Mapping[str, Any]) -> Array:
    """Return the gradient that MARS makes: Yuan et al. 2024, arXiv:2411.10438, algorithm 1."""
    if not options["mars"] or "previous" not in state:
        return g
    beta1 = options["betas"][0] if "betas" in options else options.get("beta", options.get("beta1"))
    return g + options["mars_gamma"] * beta1 / (1 - beta1) * (g - state["previous"])


def clipped(u: Array, how: str | None, total_norm: float = 0.0) -> Array:
    """Return what the clipping of this name makes of a gradient or of an update."""
    if how == "global_norm":
        return u / max(1.0, total_norm)
    if how == "l2":
        return u / max(1.0, np.sqrt(np.sum(u**2)))
    if how == "rms_norm":
        return u / max(1.0, np.sqrt(np.mean(u**2)))
    if how == "trust_region":
        y = u / 1.5
        return np.clip(1.5 * (0.1 * np.sign(y) * np.log(1 + np.abs(y)) + 0.9 * np.tanh(y)), -2, 2)
    if how == "mu_law":
        return np.sign(u) * np.log(1 + 127 * np.abs(u)) / np.log(128)
    if how == "a_law":
        x = 87.6 * np.abs(u)
        return np.sign(u) * np.where(x < 1, x, 1 + np.log(np.maximum(x, 1))) / (1 + np.log(87.6))
    assert how in (None, "identity"), how
    return u


def beta2_of(t: int, options: Mapping[str, Any]) -> float:
    """Return the decay of the averaged squares: Chowdhery et al. 2022, arXiv:2204.02311, section 5, with ``palm``."""
    return 1 - t ** -options["beta2_scale"] if options["palm"] else options["betas"][1]


def mean_square(g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the averaged square of a gradient, divided by the sum of the weights of all squares in it."""
    beta2 = beta2_of(t, options)
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g**2
    # the weight of the zero that the average began with
    state["v_start"] = beta2 * state.get("v_start", 1.0)
    return state["v"] / (1 - state["v_start"])
