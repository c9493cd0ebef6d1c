"""Slow forms in float64 NumPy of the HeavyBall family's rules, written from their papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from optim.engine.random import Draw, key_of, uniform_number

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
    ratio = lr / (options["peak_lr"] or options["lr"]) if options["corrected_weight_decay"] else 1.0
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


# Jordan et al. 2024
JORDAN = (3.4445, -4.7750, 2.0315)
# Amsel et al. 2025, arXiv:2505.16932, listing 1: all but the last one are scaled by 1.01
POLAR_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
]


def orthogonal(m: Array, options: Mapping[str, Any]) -> Array:
    """Return the orthogonal matrix that a method makes of a matrix."""
    method, eps = options["orthogonalization"], 1e-8  # Chang et al. 2026, arXiv:2603.28254
    rows, columns = (np.sqrt(np.sum(m**2, axis, keepdims=True) + eps) for axis in (1, 0))
    m = m / {None: 1.0, "rows": rows, "columns": columns, "both": rows * columns}[options["equilibrate"]]
    if method == "qr":
        q, r = np.linalg.qr(m if m.shape[0] >= m.shape[1] else m.T)
        q = q * np.sign(np.diag(r))
        return q if m.shape[0] >= m.shape[1] else q.T
    u, sigma, vt = np.linalg.svd(m, full_matrices=False)
    if method == "svd":
        return u @ vt
    # an odd polynomial of a matrix is the polynomial of its singular values
    x = sigma / np.linalg.norm(m)
    for i in range(options["ns_steps"]):
        if method == "newton_schulz":
            a, b, c = JORDAN
        else:
            (a, b, c), safety = POLAR_EXPRESS[min(i, 7)], 1.01 if i < 7 else 1.0
            a, b, c = a / safety, b / safety**3, c / safety**5
        x = a * x + b * x**3 + c * x**5
    return (u * x) @ vt


def by_matrix(u: Array, options: Mapping[str, Any], function: Any) -> Array:
    """Return the result of a function of a matrix, for every matrix that an update consists of."""
    if options["stacked_matrices"] and u.ndim > 2:
        matrices = u.reshape(-1, *u.shape[-2:])
        return np.stack([function(m) for m in matrices]).reshape(u.shape)
    return function(u.reshape(len(u), -1)).reshape(u.shape)


def resized(m: Array, options: Mapping[str, Any]) -> Array:
    """Return an orthogonal matrix, of the length that its shape asks for."""
    rows, cols = m.shape
    size = {
        "original": np.sqrt(max(1, rows / cols)),
        "match_rms_adamw": 0.2 * np.sqrt(max(rows, cols)),
        "spectral": np.sqrt(rows / cols),
    }
    return size[options["adjust_lr_fn"]] * m


def muon(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return Muon's: Jordan et al. 2024, kellerjordan.github.io/posts/muon."""
    u = _momentum(g, state, options)
    return u if p.ndim < 2 else by_matrix(u, options, lambda m: resized(orthogonal(m, options), options))


def muon_laprop(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return LaProp's, made orthogonal."""
    u = laprop(p, g, state, t, options)
    return u if p.ndim < 2 else by_matrix(u, options, lambda m: resized(orthogonal(m, options), options))


def nor_muon(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return NorMuon's: Li et al. 2025, arXiv:2510.05491, algorithm 1."""
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


def scion(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return Scion's: Pethick et al. 2025, arXiv:2502.07529, and the authors' github.com/LIONS-EPFL/scion."""
    beta1, norm = options["beta1"], options["norm"]
    m = state["m"] = g if beta1 is None else beta1 * state.get("m", 0) + (1 - beta1) * g

    def ball(x: Array) -> Array:
        cols = x.shape[1]
        if norm == "sign":
            return np.sign(x) / cols
        if norm in ("row", "embedding"):
            length = np.linalg.norm(x, axis=1, keepdims=True)
            return x / length / np.sqrt(cols) if norm == "row" else x / length * np.sqrt(cols)
        return resized(orthogonal(x, options), options)

    if p.ndim >= 2:
        return options["scale"] * by_matrix(m, options, ball)
    return options["scale"] * (np.sign(m) if norm == "sign" else m / np.sqrt((m**2).mean()))


def soap(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return SOAP's: Vyas et al. 2024, arXiv:2409.11321, algorithm 3, of parameters whose axes are not merged."""
    u = rotated_adam(p, g, state, t, options)
    if options["orthogonalization"] is None or g.ndim < 2 or not u.any():
        return u
    return by_matrix(u, options, lambda m: resized(orthogonal(m, options), options))


def rotated_adam(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction before it may be made orthogonal."""
    assert not options["merge_dims"]
    sizes = [size for size in g.shape if size > 1]
    axes = [axis for axis, size in enumerate(sizes) if size <= options["max_precond_dim"]]
    if not axes or len(sizes) < (1 if options["precondition_1d"] else 2):
        return adam(g, g, state, t, options, {})
    x = g.reshape(sizes)
    s = t - 1
    if s == 0:
        state["C"] = {axis: np.zeros((sizes[axis], sizes[axis])) for axis in axes}
    u = adam(x, x, state, s, options, state["Q"]) if s else np.zeros_like(x)
    if options["kl_factors"]:
        kl_factors(x, axes, state, s, options["shampoo_beta"])
    for axis in axes if not options["kl_factors"] else ():
        unfolded = np.moveaxis(x, axis, 0).reshape(sizes[axis], -1)
        decay = options["shampoo_beta"]
        state["C"][axis] = decay * state["C"][axis] + (1 - decay) * unfolded @ unfolded.T
    if s == 0:
        state["Q"] = {axis: eigenvectors(state["C"][axis], x.size // sizes[axis]) for axis in axes}
    elif s % options["precondition_frequency"] == 0 and drawn(s, options):
        for axis in axes:
            refresh(axis, state)
    return u.reshape(g.shape)


def kl_factors(x: Array, axes: list[int], state: State, s: int, decay: float) -> None:
    """Add a gradient to all covariances: Lin et al. 2025, arXiv:2509.03378, with the authors' eigenvalues."""
    former = state.setdefault("eigenvalues", {axis: np.full(x.shape[axis], 0.1) for axis in axes})
    new = {}
    for axis in axes:
        # the inverse of the Kronecker product of the other factors
        metric = np.eye(1)
        for other, size in enumerate(x.shape):
            if other != axis:
                known = s > 0 and other in axes
                factor = (state["Q"][other] / former[other]) @ state["Q"][other].T if known else np.eye(size)
                metric = np.kron(metric, factor)
        unfolded = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
        seen = unfolded @ metric @ unfolded.T * x.shape[axis] / x.size
        state["C"][axis] = decay * state["C"][axis] + (1 - decay) * seen
        new[axis] = former[axis]
        if s:
            in_basis = np.diag(state["Q"][axis].T @ seen @ state["Q"][axis])
            least = np.clip(x.shape[axis], 10, 4000) ** -2.0
            new[axis] = np.maximum(decay * former[axis] + (1 - decay) * in_basis, least)
    state["eigenvalues"] = new


def adam(g: Array, x: Array, state: State, t: int, options: Mapping[str, Any], bases: Mapping[int, Array]) -> Array:
    """Run Adam on the rotated gradient, with m in the original space, and return its direction there."""
    beta1, beta2 = options["betas"]
    if options.get("palm"):
        beta2 = 1 - t ** -options["beta2_scale"]
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * rotated(x, bases) ** 2
    state["rest"] = beta2 * state.get("rest", 1.0)
    corrections = (1 - beta1**t, 1 - state["rest"]) if options["correct_bias"] else (1.0, 1.0)
    n = rotated(state["m"], bases) / (np.sqrt(state["v"] / corrections[1]) + options["eps"])
    n = rotated(n, {axis: q.T for axis, q in bases.items()})
    if options["normalize_grads"]:
        # made 1 before both corrections, as in the paper's code
        n *= np.sqrt(corrections[1] / np.mean(n**2))
    return n / corrections[0]


def shampoo(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return Shampoo's direction: Gupta et al. 2018, arXiv:1802.09568, with averages, and grafted to Adam."""
    assert not options["merge_dims"]
    beta1, decay = options["betas"][0], options["shampoo_beta"]
    sizes = [size for size in g.shape if size > 1]
    axes = [axis for axis, size in enumerate(sizes) if size <= options["max_precond_dim"]]
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    m = state["m"] / (1 - beta1**t)
    a = m / (np.sqrt(mean_square(g, state, t, options)) + options["eps"])
    if len(sizes) < 2 or not axes:
        return a
    if options["one_sided"]:
        axes = [min(axes, key=lambda axis: sizes[axis])]
    x, u = g.reshape(sizes), m.reshape(sizes)
    covariances = state.setdefault("C", {axis: np.zeros((sizes[axis], sizes[axis])) for axis in axes})
    roots = state.setdefault("P", {})
    for axis in axes:
        unfolded = np.moveaxis(x, axis, 0).reshape(sizes[axis], -1)
        covariances[axis] = decay * covariances[axis] + (1 - decay) * unfolded @ unfolded.T
        if t == 1 or t % options["precondition_frequency"] == 0:
            values, q = np.linalg.eigh(covariances[axis] / (1 - decay**t))
            values = np.maximum(values, 0) + options["matrix_eps"] * values.max()
            roots[axis] = q @ np.diag(values ** -(options["exponent"] or 0.5 / len(axes))) @ q.T
    u = rotated(u, roots).reshape(g.shape)
    return u if options["graft"] is None else u * np.linalg.norm(a) / np.linalg.norm(u)


def rotated(x: Array, bases: Mapping[int, Array]) -> Array:
    """Return x with each axis multiplied by the transpose of its basis."""
    for axis, q in bases.items():
        x = np.moveaxis(np.tensordot(x, q, axes=(axis, 0)), -1, axis)
    return x


def eigenvectors(c: Array, rank: int) -> Array:
    """Return eigenvectors as columns; those of the eigenvalue 0 are the columns that a QR factorization adds."""
    q = np.linalg.eigh(c)[1][:, ::-1]
    return q if rank >= len(c) else np.linalg.qr(q[:, :rank], mode="complete")[0]


def refresh(axis: int, state: State) -> None:
    """Replace a basis by that after one power iteration, and bring v into the order of its columns."""
    c, q = state["C"][axis], state["Q"][axis]
    order = np.argsort(-np.diag(q.T @ c @ q), kind="stable")
    state["Q"][axis] = np.linalg.qr((c @ q)[:, order])[0]
    state["v"] = np.take(state["v"], order, axis)
    if "eigenvalues" in state:
        state["eigenvalues"][axis] = state["eigenvalues"][axis][order]


def drawn(s: int, options: Mapping[str, Any]) -> bool:
    """Return whether the schedule allows a refresh after the s-th step of Adam."""
    power, exponent = options["precond_scheduler"]
    part = s * (np.sqrt(5) - 1) / 2 % 1
    return not options["use_precond_schedule"] or bool(part < 1 / (1 + np.log10(s**power) ** exponent))


def psgd_kron(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return PSGD's with whole matrices, before it is clipped.

    Li 2015, arXiv:1512.04202, in the Kronecker form of kron_torch 0.3.3. The probes and the drawn updates are the
    optimizer's own: they are what it takes from `optim.engine.random`.
    """
    shape = tuple(size for size in g.shape if size != 1) or (1,)
    g = g.reshape(shape)
    average = g
    if options["exp_avg_input"]:
        state["m"] = options["beta"] * state.get("m", 0) + (1 - options["beta"]) * g
        average = state["m"] / (1 - options["beta"] ** t)
    # every factor is a matrix here; `diagonal` says which stay diagonal
    start = options["precond_init_scale"] ** (1 / len(shape))
    factors = state.setdefault("factors", [start * np.eye(size) for size in shape])
    diagonal = [not triangular for triangular in _triangular(shape, options)]
    early = _preconditioned(average, factors)
    if _drawn(options, t, "update preconditioner", _probability(t, options)):
        observed = average if options["momentum_into_precond_update"] else g
        _fit(observed, _probe(p, state, t, options).reshape(shape), factors, diagonal, options["precond_lr"])
        if len(shape) > 1 and _drawn(options, t, "balance preconditioner", 0.01):
            sizes = [np.abs(q).max() for q in factors]
            for q, size in zip(factors, sizes, strict=True):
                q *= np.prod(sizes) ** (1 / len(sizes)) / size
    return (early if options["delayed"] else _preconditioned(average, factors)).reshape(p.shape)


def _triangular(shape: tuple[int, ...], options: Mapping[str, Any]) -> list[bool]:
    mode, longest = options["memory_save_mode"], len(shape) - 1 - int(np.argmax(shape[::-1]))
    return [
        1 < size <= options["max_size_triangular"]
        and len(shape) >= options["min_ndim_triangular"]
        and mode != "all_diag"
        and not (mode == "one_diag" and axis == longest)
        for axis, size in enumerate(shape)
    ]


def _probability(t: int, options: Mapping[str, Any]) -> float:
    constant = options["preconditioner_update_probability"]
    return max(0.03, min(1.0, np.exp(-0.001 * (t - 1000)))) if constant is None else constant


def _drawn(options: Mapping[str, Any], t: int, purpose: str, probability: float) -> bool:
    return uniform_number(options["seed"], t, purpose) < probability


def _probe(p: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    draw = Draw(options["seed"], t, "probe", [key_of(state["name"])], torch.device("cpu"))
    return draw.normal(p.size)[0].double().numpy()


def _along(x: Array, matrix: Array, axis: int) -> Array:
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def _preconditioned(x: Array, factors: list[Array]) -> Array:
    for axis, q in enumerate(factors):
        x = _along(x, q.T @ q, axis)
    return x


def _fit(h: Array, v: Array, factors: list[Array], diagonal: list[bool], precond_lr: float) -> None:
    a, b = h + np.sqrt(2.0**-23) * np.abs(h).mean() * v, v
    for axis, q in enumerate(factors):
        a, b = _along(a, q, axis), _along(b, np.linalg.inv(q).T, axis)
    for axis, (q, is_diagonal) in enumerate(zip(factors, diagonal, strict=True)):
        x, y = (np.moveaxis(each, axis, 0).reshape(len(q), -1) for each in (a, b))
        difference, total = x @ x.T - y @ y.T, x @ x.T + y @ y.T
        if is_diagonal:
            q -= precond_lr * np.diag(np.diag(difference)) @ q / np.diag(total).max()
        else:
            q -= precond_lr * np.triu(difference) @ q / _norm_bound(total)


def _norm_bound(s: Array) -> float:
    image = s @ s[:, (s**2).sum(0).argmax()]
    return float(np.linalg.norm(s @ image / np.linalg.norm(image)))
