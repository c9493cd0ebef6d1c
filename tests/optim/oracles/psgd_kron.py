"""PSGD's direction with whole matrices: Li 2015, arXiv:1512.04202, in the Kronecker form of kron_torch 0.3.3.

The probes and the drawn updates are the optimizer's own: they are what it takes from `optim.engine.random`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from optim.engine.random import Draw, key_of, uniform_number
from tests.optim.oracles.common import Array, State


def psgd_kron(p: Array, g: Array, state: State, t: int, options: Mapping[str, Any]) -> Array:
    """Return the direction of a step, before it is clipped."""
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
