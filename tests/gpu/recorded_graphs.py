"""CUDA graphs on a CPU: a capture records operations and leaves all as it was, a replay repeats them in place.

What a graph cannot do is refused, or shows: numbers that the host reads, and Python that decides anew at each pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr import devices
from asr.training import cuda_graphs
from optim.engine.param_batch import ParamBatch


class RecordedGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    num_replays = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def replay(self) -> None:
        """Repeat all operations, with results where they were before."""
        RecordedGraph.num_replays += 1
        with torch.no_grad():
            for function, args, kwargs, before in self.calls:
                for old, new in zip(before, _tensors(function(*args, **kwargs)), strict=True):
                    if old is not new:
                        old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph, self.own = graph, list[Tensor]()
        self.changed: dict[int, tuple[Tensor, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a graph reads no number"
        kwargs = kwargs or {}
        inner = {x.untyped_storage().data_ptr() for x in self.own}
        given = {x.untyped_storage().data_ptr(): x for x in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            for place, x in given.items():
                if place not in inner and place not in self.changed:
                    self.changed[place] = (x, x.untyped_storage().clone())
        result = func(*args, **kwargs)
        results = _tensors(result)
        fresh = [x for x in results if x.untyped_storage().data_ptr() not in given]
        self.own += fresh
        # views stay what they are
        if func._schema.is_mutable or fresh:
            self.graph.calls.append((func, args, kwargs, results))
        return result

    def undo(self) -> None:
        """Put back what operations have changed that was there before."""
        for x, storage in self.changed.values():
            x.untyped_storage().copy_(storage)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def _graph(graph: RecordedGraph, *_: Any, **__: Any) -> Iterator[None]:
    state, capture = torch.get_rng_state(), _Capture(graph)
    with capture:
        yield
    capture.undo()
    torch.set_rng_state(state)


@contextmanager
def recorded_graphs() -> Iterator[type[RecordedGraph]]:
    """Let CUDA graphs be such ones; the class counts replays."""
    RecordedGraph.num_replays = 0
    with (
        patch.object(torch.cuda, "CUDAGraph", RecordedGraph),
        patch.object(torch.cuda, "graph", _graph),
        patch.object(cuda_graphs, "_has_room", lambda: True),
        # what a GPU would not read
        patch.object(devices, "on_accelerator", lambda x: True),
        patch.object(ParamBatch, "read", ParamBatch.per_parameter),
    ):
        yield RecordedGraph
