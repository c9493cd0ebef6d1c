"""Counts what a step dispatches on the meta device: on a GPU, each is a launch or more, and launches are the cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

SHAPES = Path(__file__).parents[2] / "scripts" / "bench" / "zipformer_s.json"
ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
READS = {"_local_scalar_dense", "is_nonzero"}
OTHERS = {"_unsafe_view", "_record_function_enter_new", "_record_function_exit"}  # a view, and torch's own profiling
PER_MATRIX = {"linalg_qr", "_linalg_eigh", "linalg_eigh", "_linalg_svd"}
"""Libraries call these once per matrix of a stack."""


class Dispatched(TorchDispatchMode):
    """Counts operations by name; views, reads and allocations are none.

    A foreach call counts as its length if its lists differ in shape, dtype or stride: it then calls once per tensor. A
    decomposition counts once per matrix.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        aliases = [r.alias_info for r in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and name not in ALLOCATIONS | READS | OTHERS:
            self.counts[name] += _calls(name, args)
        return func(*args, **(kwargs or {}))


def _calls(name: str, args: tuple[Any, ...]) -> int:
    if name in PER_MATRIX:
        return prod(args[0].shape[:-2])
    lists = [x for x in args if isinstance(x, list) and x and isinstance(x[0], Tensor)]
    if not name.startswith("_foreach") or name == "_foreach_norm":
        return 1
    kinds = [[(x.shape, x.dtype, x.stride()) for x in each] for each in lists]
    alike = all(row.count(row[0]) == len(row) for row in zip(*kinds, strict=True))
    return 1 if alike and len({x.dtype for x in lists[0]}) == 1 else len(lists[0])


def dispatched(build: Callable[[list[tuple[str, Tensor]]], Optimizer], num_steps: int, warm_up: int = 2) -> float:
    """Return how many operations a step dispatches on the meta device, for the shapes of a Zipformer.

    Args:
        build: makes the optimizer of pairs of a name and a parameter.
        num_steps: to take the mean of.
        warm_up: steps before them.
    """
    named_shapes = json.loads(SHAPES.read_text())
    params = [(name, torch.nn.Parameter(torch.empty(shape, device="meta"))) for name, shape in named_shapes]
    optimizer = build(params)
    for _, param in params:
        param.grad = torch.empty_like(param)
    for _ in range(warm_up):
        optimizer.step()
    with Dispatched() as counter:
        for _ in range(num_steps):
            optimizer.step()
    return counter.counts.total() / num_steps
