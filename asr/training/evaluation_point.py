"""Optimizers that evaluate a model at other weights than those where they take gradients, such as Schedule-Free.

The recognizer holds the weights for training during updates alone. Validation, averages of weights and checkpoints see
those for evaluation, so that a checkpoint can be decoded with them; the optimizer's state in the checkpoint
holds the others, from which a resumed run continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch.optim import Optimizer


@runtime_checkable
class HasEvaluationPoint(Protocol):
    """An optimizer that may evaluate elsewhere than it trains."""

    @property
    def has_evaluation_point(self) -> bool:
        """Whether it does."""

    @property
    def is_evaluating(self) -> bool:
        """Whether the parameters are the weights for evaluation."""

    def eval(self) -> None:
        """Put the weights for evaluation into the parameters."""

    def train(self) -> None:
        """Put back the weights for training, bit for bit."""


def go_to_evaluation_point(optimizers: Sequence[Optimizer]) -> list[HasEvaluationPoint]:
    """Put the weights for evaluation into the parameters; return the optimizers that had others there."""
    moved: list[HasEvaluationPoint] = []
    for optimizer in optimizers:
        if isinstance(optimizer, HasEvaluationPoint) and not optimizer.is_evaluating:
            optimizer.eval()
            moved.append(optimizer)
    return moved


def go_to_training_point(optimizers: Iterable[Optimizer | HasEvaluationPoint]) -> None:
    """Put back the weights for training."""
    for optimizer in optimizers:
        if isinstance(optimizer, HasEvaluationPoint):
            optimizer.train()


@contextlib.contextmanager
def at_evaluation_point(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Keep the weights for evaluation in the parameters for a while; afterwards those that were there before."""
    moved = go_to_evaluation_point(optimizers)
    try:
        yield
    finally:
        go_to_training_point(moved)
