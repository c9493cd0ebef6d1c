"""CUDA graphs on a CPU: a capture records operations and leaves all as it was, a replay repeats them in place.

What a graph cannot do is refused, or shows: numbers that the host reads, Python that decides anew at each pass, memory
that nobody owns any more, and autocast, under which a graph is captured but not replayed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from asr.models import devices
from asr.training import cuda_graphs
from optim.engine.param_batch import ParamBatch


class Outside:
    """A tensor whose memory a graph reads or writes, and does not own."""

    def __init__(self, x: Tensor) -> None:
        self.storage = StorageWeakRef(x.untyped_storage())
        self.like = x.dtype, x.storage_offset(), x.size(), x.stride()

    def tensor(self) -> Tensor:
        """Return it, as long as somebody owns its memory."""
        assert not self.storage.expired(), "a graph would read or write memory that nobody owns"
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        dtype, *place = self.like
        return torch.empty(0, dtype=dtype).set_(storage, *place)


@dataclass
class Call:
    """An operation, and where its results lie."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]


class RecordedGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    num_replays = 0

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def replay(self) -> None:
        """Repeat all operations, with results where they were before."""
        RecordedGraph.num_replays += 1
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for call in self.calls:
                args, kwargs = tree_map(_inside, (call.args, call.kwargs))
                for old, new in zip(call.results, _tensors(call.function(*args, **kwargs)), strict=True):
                    # what is changed in place is a result too
                    if old is not None and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


def _inside(x: Any) -> Any:
    return x.tensor() if isinstance(x, Outside) else x


class _Capture(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph, self.own = graph, dict[int, Tensor]()
        self.changed: dict[int, tuple[Tensor, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a graph reads no number"
        kwargs = kwargs or {}
        given = {x.untyped_storage().data_ptr(): x for x in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            for place, x in given.items():
                if place not in self.own and place not in self.changed:
                    self.changed[place] = (x, x.untyped_storage().clone())
        result = func(*args, **kwargs)
        results = _tensors(result)
        fresh = {place: x for x in results if (place := x.untyped_storage().data_ptr()) not in given}
        self.own |= fresh
        # views stay what they are
        if func._schema.is_mutable or fresh:
            given = tree_map(self._owned, (args, kwargs))
            self.graph.calls.append(Call(func, *given, [x if self._owns(x) else None for x in results]))
        return result

    def _owns(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self.own

    def _owned(self, x: Any) -> Any:
        return Outside(x) if isinstance(x, Tensor) and not self._owns(x) else x

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
    autocast = torch.autocast
    with (
        patch.object(torch.cuda, "CUDAGraph", RecordedGraph),
        patch.object(torch.cuda, "graph", _graph),
        patch.object(torch, "autocast", lambda device, *args, **kwargs: autocast("cpu", *args, **kwargs)),
        patch.object(cuda_graphs, "_has_room", lambda: True),
        # what a GPU would not read
        patch.object(devices, "on_accelerator", lambda x: True),
        patch.object(ParamBatch, "read", ParamBatch.per_parameter),
    ):
        yield RecordedGraph
