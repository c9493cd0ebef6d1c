"""What the module and optimizers of any package must agree on.

Some evaluate a model at other weights than those where they take gradients, such as Schedule-Free. The recognizer holds
the weights for training during updates alone. Validation, averages of weights and checkpoints see those for evaluation,
so that a checkpoint can be decoded with them; the optimizer's state in the checkpoint holds the others, from which a
resumed run continues. Lightning computes gradients in closures, and some optimizers never call theirs.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
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


@runtime_checkable
class SupportsFoundInf(Protocol):
    """An optimizer that can skip a step although the host does not know that it should.

    Attributes:
        capturable: whether it can do so now; then a CUDA graph can replay its updates, too.
        found_inf: (), on the device: a step changes nothing if it is not zero.
    """

    capturable: bool
    found_inf: Tensor | None

    def make_capturable(self) -> None:
        """Compute all that changes from update to update on the device; a ValueError if it cannot."""

    def update(self) -> None:
        """Move the parameters by the gradients that are there."""

    def run_updates_by(self, runner: Callable[[], None] | None) -> None:
        """Have ``step`` call this function, which calls `update` or replays it; None: `update` itself."""


def members_of(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that step as one, or the optimizer itself."""
    members: list[Optimizer] = getattr(optimizer, "optimizers", [optimizer])
    return members


def calls_closure(optimizer: Optimizer) -> bool:
    """Make a trial update; return whether ``step`` calls its closure, as Lightning expects.

    Args:
        optimizer: of parameters that are thrown away.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    calls = 0

    def closure() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    parameters = inspect.signature(optimizer.step).parameters.values()
    if any(p.name == "closure" or p.kind is p.VAR_KEYWORD for p in parameters):
        optimizer.step(closure=closure)  # LBFGS needs it
    else:
        optimizer.step()
    return calls > 0


def compute_gradients_first(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call the closure in the place of a ``step`` that would not; a hook of torch's, registered before all others."""
    if (closure := kwargs.get("closure")) is not None:
        closure()
    return args, {name: value for name, value in kwargs.items() if name != "closure"}
