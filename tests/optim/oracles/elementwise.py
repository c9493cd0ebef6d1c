"""Directions of rules that treat each element alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, beta2_of, mean_square


def adamw(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return AdamW's: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1."""
    beta1 = options["betas"][0]
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    return state["m"] / (1 - beta1**t) / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])


def ademamix(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return AdEMAMix's: Pagliardini et al. 2024, arXiv:2409.03137, algorithm 1, with the authors' schedules."""
    beta1, _, beta3 = options["betas"]
    alpha, alpha_warmup, beta3_warmup = (options[name] for name in ("alpha", "alpha_warmup", "beta3_warmup"))
    alpha *= min(1.0, t / alpha_warmup) if alpha_warmup else 1.0
    if beta3_warmup and t < beta3_warmup:
        start, end = (np.log(0.5) / np.log(beta + 1e-8) - 1 for beta in (beta1, beta3))
        beta3 = 0.5 ** (1 / (start + (end - start) * t / beta3_warmup + 1))
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["slow"] = beta3 * state.get("slow", 0) + (1 - beta3) * g
    root = np.sqrt(mean_square(g, state, t, options))
    return (state["m"] / (1 - beta1**t) + alpha * state["slow"]) / (root + options["eps"])


def laprop(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return LaProp's: Ziyin et al. 2020, arXiv:2002.04839, algorithm 1."""
    beta1 = options["betas"][0]
    divided = g / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * divided
    return state["m"] / (1 - beta1**t)


def rmsprop(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return RMSprop's: Tieleman and Hinton 2012, lecture 6.5, with an average that is free of bias."""
    return g / np.maximum(np.sqrt(mean_square(g, state, t, options)), options["eps"])


def adopt(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return ADOPT's: Taniguchi et al. 2024, arXiv:2411.02853, algorithm 2, with clipping."""
    if t == 1:
        state["m"], state["v"] = np.zeros_like(g), g**2
        return np.zeros_like(g)
    beta1, beta2, exponent = options["betas"][0], beta2_of(t, options), options["clip_exponent"]
    bound = np.inf if exponent is None else (t - 1) ** exponent
    divided = np.clip(g / np.maximum(np.sqrt(state["v"]), options["eps"]), -bound, bound)
    state["m"] = beta1 * state["m"] + (1 - beta1) * divided
    state["v"] = beta2 * state["v"] + (1 - beta2) * g**2
    return state["m"]


def lion(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return Lion's: Chen et al. 2023, arXiv:2302.06675, algorithm 2."""
    (beta1, beta2), m = options["betas"], state.get("m", np.zeros_like(g))
    state["m"] = beta2 * m + (1 - beta2) * g
    return np.sign(beta1 * m + (1 - beta1) * g)


def prodigy(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return Prodigy's: Mishchenko and Defazio 2023, arXiv:2306.06101, algorithm 4."""
    (beta1, beta2), shared = options["betas"], state["shared"]
    if shared.get("t") != t:
        shared["t"] = t
        estimate(shared, t, options)
    d, state["estimated_lr"] = shared["d_before"], shared["estimated_lr"]
    beta2 = beta2_of(t, options)
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * d * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * d**2 * g**2
    return state["m"] / (np.sqrt(state["v"]) + shared["d"] * options["eps"])


def estimate(shared: State, t: int, options: Mapping[str, Any]) -> None:
    """Find d of all parameters, from their gradients as they came."""
    (beta1, beta2), d0, params = options["betas"], options["d0"], shared["params"]
    beta3 = beta2**0.5 if options["beta3"] is None else options["beta3"]
    start, d = shared.setdefault("start", params), shared.get("d", d0)
    correction = (1 - beta2**t) ** 0.5 / (1 - beta1**t) if options["use_bias_correction"] else 1.0
    warmup_steps = options["warmup_steps"]
    rate = d * options["lr"] * correction * (t / warmup_steps if t < warmup_steps else 1.0)
    path = sum(np.sum(g * (p0 - p)) for g, p0, p in zip(shared["grads"], start, params, strict=True))
    shared["r"] = beta3 * shared.get("r", 0) + d / d0 * rate * path
    weight = d / d0 * (d if options["safeguard_warmup"] else rate)
    former = shared.get("s", [0] * len(start))
    shared["s"] = [beta3 * s + weight * g for s, g in zip(former, shared["grads"], strict=True)]
    found = options["d_coef"] * shared["r"] / sum(np.abs(s).sum() for s in shared["s"])
    shared["d_before"], shared["estimated_lr"] = d, d * correction
    d = max(d, found) if d == d0 else d
    shared["d_max"] = max(shared.get("d_max", d0), found)
    shared["d"] = min(shared["d_max"], d * (options["growth_rate"] or np.inf))


def divided_by_rms(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return that of Schedule-Free AdamW, see `schedule_free`."""
    return g / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])


def schedule_free_plus(y: Array, u: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the next y of all three sequences: Defazio 2026, arXiv:2605.19095, with a rate that is given."""
    warmup_steps, anneal_steps = options["warmup_steps"], options["sf_beta1_anneal_steps"]
    lr = options["lr"] * (t / warmup_steps if t < warmup_steps else 1.0)
    share = min((t - 1) / anneal_steps, 1.0) if anneal_steps else 0.0
    beta = 1 - np.exp(np.log(1 - options["sf_beta1"]) * (1 - share) + np.log(1 - options["sf_beta1_max"]) * share)
    x, z = state.get("x", y), state.get("z", y)
    decays = u * y >= 0 if options["cautious_weight_decay"] else 1.0
    z = z - lr**2 * options["weight_decay"] * y * decays - lr * u
    state["lr_max"], c = max(lr, state.get("lr_max", 0.0)), 1.0
    if t > options["c_warmup"]:
        weight = t ** options["r"] * state["lr_max"] ** options["weight_lr_power"]
        state["weight_sum"] = state.get("weight_sum", 0.0) + weight
        c = weight / state["weight_sum"]
    state["x"], state["z"] = (1 - c) * x + c * z, z
    return (1 - beta) * z + beta * state["x"]


def schedule_free(y: Array, u: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the next y of all three sequences: Defazio et al. 2024, arXiv:2405.15682, algorithm 1."""
    beta, warmup_steps = options["betas"][0], options["warmup_steps"]
    lr = options["lr"] * (t / warmup_steps if t < warmup_steps else 1.0)
    x, z = state.get("x", y), state.get("z", y)
    decays = u * y >= 0 if options["cautious_weight_decay"] else 1.0
    z = z - lr * (u + options["weight_decay"] * y * decays)
    state["lr_max"] = max(lr, state.get("lr_max", 0.0))
    weight = t ** options["r"] * state["lr_max"] ** options["weight_lr_power"]
    state["weight_sum"] = state.get("weight_sum", 0.0) + weight
    c = weight / state["weight_sum"]
    state["x"], state["z"] = (1 - c) * x + c * z, z
    return (1 - beta) * z + beta * state["x"]
