"""SOAP's direction: Vyas et al. 2024, arXiv:2409.11321, algorithm 3, of parameters whose axes are not merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array, State, mean_square
from tests.optim.oracles.orthogonal import by_matrix, orthogonal, resized


def soap(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step."""
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
