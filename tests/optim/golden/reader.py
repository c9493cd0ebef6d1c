"""Reads the reference trajectories beside this file, and regenerates the inputs that they start from.

Inputs are made with 64-bit integers and IEEE additions and products only, then rounded to float32, so that they are the
same on every machine and for both floating-point types.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent
LARGEST_WHOLE = 4096
NUM_SAMPLES = 96
SHAPES = {
    "scalar": (),
    "one": (1,),
    "vec": (7,),
    "mat": (16, 12),
    "conv": (12, 1, 5),
    "stack": (3, 8, 6),
    "big": (130, 140),
}
Arrays = dict[str, np.ndarray]
Gradients = list[dict[str, np.ndarray | None]]


class Uniform:
    """SplitMix64 (Steele, Lea and Flood 2014), 53 bits of each output."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def draw(self, count: int) -> np.ndarray:
        """Return ``count`` numbers in [0, 1)."""
        increments = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = np.uint64(self.state) + increments
        self.state = int(z[-1])
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def bell(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return sums of four uniforms, scaled to unit variance."""
        count = int(np.prod(shape, dtype=np.int64))
        a, b, c, d = self.draw(4 * count).reshape(4, count)
        return ((a + b + c + d - 2.0) * 1.7320508075688772).reshape(shape)


def _skew(uniform: Uniform, shape: tuple[int, ...]) -> np.ndarray:
    """Powers of two per row and per column, so that factored moments have something to factor."""
    factor = np.ones(shape)
    if len(shape) < 2:
        return factor
    for axis, size in enumerate(shape):
        exponents = (np.floor(uniform.draw(size) * 6.0) - 3.0).astype(int)
        factor = factor * np.ldexp(1.0, exponents).reshape([size if i == axis else 1 for i in range(len(shape))])
    return factor


def make_inputs(
    seed: int,
    shapes: dict[str, tuple[int, ...]] | None = None,
    steps: int = 25,
    zero_step: int = 7,
    none_at: Any = (("mat", 12), ("vec", 1)),
    nan_at: Any = (),
    exponent_range: tuple[int, int] = (-9, 3),
) -> tuple[Arrays, Gradients]:
    """Return parameters and one dict of gradients per step, as float32; steps count from 1."""
    shapes = {name: tuple(shape) for name, shape in (shapes or SHAPES).items()}
    uniform, (low, high) = Uniform(seed), exponent_range
    params: Arrays = {}
    skews: Arrays = {}
    for i, (name, shape) in enumerate(shapes.items()):
        params[name] = (uniform.bell(shape) * 2.0 ** -(i % 4)).astype(np.float32)
        skews[name] = _skew(uniform, shape)
    grads: Gradients = []
    for step in range(1, steps + 1):
        row: dict[str, np.ndarray | None] = {}
        for name, shape in shapes.items():
            exponent = int(np.floor(uniform.draw(1)[0] * (high - low + 1))) + low
            grad = (uniform.bell(shape) * skews[name] * 2.0**exponent).astype(np.float32)
            row[name] = np.zeros_like(grad) if step == zero_step else grad
        row.update({name: None for name, when in none_at if when == step})
        for name, when, place in nan_at:
            if when == step and (grad := row[name]) is not None:
                grad.reshape(-1)[place] = np.nan
        grads.append(row)
    return params, grads


def fingerprint(params: Arrays, grads: Gradients) -> str:
    """Return the SHA-256 of inputs, as the manifest has it."""
    digest = hashlib.sha256()
    for row in (params, *grads):
        for name in sorted(row):
            value = row[name]
            digest.update(name.encode() + (b"-" if value is None else np.ascontiguousarray(value).tobytes()))
    return digest.hexdigest()


@functools.cache
def manifest() -> dict[str, Any]:
    """Return the list of inputs, cases and schedules."""
    return json.loads((FOLDER / "manifest.json").read_text())


@functools.cache
def inputs(name: str) -> tuple[Arrays, Gradients]:
    """Return an input set by its name in the manifest; not to be modified."""
    entry = manifest()["inputs"][name]
    params, grads = make_inputs(**entry["args"])
    if fingerprint(params, grads) != entry["sha256"]:
        raise RuntimeError(f"input set {name!r} differs from the one that the trajectories were made with")
    return params, grads


@functools.cache
def arrays(stem: str) -> Arrays:
    """Return all arrays of one file."""
    with np.load(FOLDER / f"{stem}.npz") as file:
        return {key: file[key] for key in file.files}


@dataclass(frozen=True)
class Trajectory:
    """One case of the manifest in one floating-point type: "f64", "f32", or "bf16" for what the reference has in it."""

    optimizer: str
    name: str
    kind: str
    inputs: str
    hyper: dict[str, Any]
    steps: tuple[int, ...]
    gap: float

    @property
    def dtype(self) -> torch.dtype:
        """The type of parameters, gradients and arithmetic."""
        return torch.float64 if self.kind == "f64" else torch.float32

    @property
    def tolerance(self) -> float:
        """Largest relative difference that rounding explains."""
        if self.kind == "bf16":
            return max(1e-3, 20 * self.gap)
        return 1e-10 if self.kind == "f64" else max(1e-5, 2 * self.gap)

    def largest_difference(self, step: int, params: dict[str, torch.Tensor]) -> float:
        """Return max |got − want| / max |want| over all tensors after ``step`` steps; infinite if NaNs differ."""
        wanted = arrays(self.optimizer)
        return max(
            _relative_difference(got, wanted[f"{self.name}/{self.kind}/{step}/{name}{suffix}"])
            for name, param in params.items()
            for suffix, got in probes(param.detach().cpu().numpy()).items()
        )


def probes(value: np.ndarray) -> Arrays:
    """Return what is stored of a tensor: itself, or samples and sums of a large one."""
    if value.size <= LARGEST_WHOLE:
        return {"": value}
    places = np.arange(NUM_SAMPLES) * value.size // NUM_SAMPLES
    rows = value.reshape(len(value), -1)
    return {"#at": value.reshape(-1)[places], "#rows": rows.sum(axis=1), "#cols": rows.sum(axis=0)}


def _relative_difference(got: np.ndarray, want: np.ndarray) -> float:
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return float("inf")
    got, want = (np.nan_to_num(np.asarray(x, dtype=np.float64)) for x in (got, want))
    return float(np.abs(got - want).max() / (np.abs(want).max() + 1e-30))


def trajectories(optimizer: str) -> Iterator[Trajectory]:
    """Yield every trajectory of one optimizer, by its name in the manifest."""
    for case in manifest()["cases"]:
        if case["optimizer"] == optimizer:
            for kind in case["dtypes"]:
                yield Trajectory(
                    optimizer=optimizer,
                    name=case["name"],
                    kind=kind,
                    inputs=case["inputs"],
                    hyper={**case["hyper"], **case.get("by_dtype", {}).get(kind, {})},
                    steps=tuple(case["steps"]),
                    gap=case.get(f"{kind}_gap", case["f32_gap"]),
                )
