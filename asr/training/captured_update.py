"""``trainer.capture=updates``: updates of an optimizer as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch
from torch import Tensor


@contextmanager
def naming_capture() -> Iterator[None]:
    """Say with an error of a capture how to do without."""
    try:
        yield
    except RuntimeError as error:
        error.add_note("trainer.capture=false trains without CUDA graphs")
        raise


class CapturedUpdate:
    """Makes an optimizer's updates.

    The first update is computed as always, the second one is captured, later ones are replayed, as long as the same
    parameters have gradients, and rates, statistics and options are in the same places. Gradients that are elsewhere,
    such as those of a head, are copied to where the graph reads them.

    Args:
        optimizer: whose updates are captured; it has become capturable.
        passes: a `CapturedForward`, whose memory the graph shares; None: it has memory of its own.
    """

    def __init__(self, optimizer: Any, passes: Any = None) -> None:
        self.optimizer, self.compute, self.passes = optimizer, optimizer.update, passes
        self.holds_for: Any = None  # options, and which parameters have gradients, and where they are
        self.tensors: list[Tensor] = []  # rates and statistics
        self.gradients: dict[Tensor, Tensor] = {}
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Update."""
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        options = [
            {k: x for k, x in group.items() if isinstance(x, bool | int | float | str | tuple)} for group in groups
        ]
        holds_for = options, [(parameter.data_ptr(), parameter.grad is None) for parameter in parameters]
        self._move_gradients(parameters)
        tensors = list(self._tensors())
        is_same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        if holds_for != self.holds_for or not is_same:
            self.holds_for, self.graph = holds_for, None
            self.compute()
        else:
            if self.graph is None:
                graph, pool = torch.cuda.CUDAGraph(), getattr(self.passes, "pool", None)
                with naming_capture(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    self.compute()
                self.graph = graph
            self.graph.replay()
        self.tensors = list(self._tensors())

    def _move_gradients(self, parameters: list[Tensor]) -> None:
        moved = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            buffer = self.gradients.setdefault(parameter, parameter.grad)
            if buffer is not parameter.grad:
                moved.append((buffer, parameter.grad))
                parameter.grad = buffer
        if moved:
            torch._foreach_copy_([buffer for buffer, _ in moved], [gradient for _, gradient in moved])

    def _tensors(self) -> Iterator[Tensor]:
        holders = [*self.optimizer.param_groups, *self.optimizer.state.values()]
        holders += [group["shared_state"] for group in self.optimizer.param_groups]
        return (x for holder in holders for x in holder.values() if isinstance(x, Tensor))
