"""Orthogonal updates: Jordan et al. 2024, Amsel et al. 2025 (arXiv:2505.16932) and singular values themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.optim.oracles.common import Array

JORDAN = (3.4445, -4.7750, 2.0315)
# arXiv:2505.16932, listing 1: all but the last one are scaled by 1.01
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
