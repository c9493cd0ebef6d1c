"""Updates that nothing waits for: what the module and an optimizer must agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer


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
