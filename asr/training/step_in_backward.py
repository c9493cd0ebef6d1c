"""Updates within the backward pass (``trainer.step_in_backward=true``): what module and optimizer must agree on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from asr.errors import Diverged
from asr.models import devices


@runtime_checkable
class StepsInBackward(Protocol):
    """An optimizer whose parameters step as soon as they have a gradient.

    Attributes:
        before_step: called with every gradient before its step, which False leaves out.
    """

    before_step: Callable[[Tensor], bool] | None

    def remove(self) -> None:
        """Stop stepping in the backward pass."""


class GradientsInBackward:
    """Scales gradients on their way to the optimizer, which sees each of them alone, and remembers their norms.

    What decides about an update is known before its backward pass, except whether its gradients are finite: if they
    are not, parameters have moved already, and the run ends.
    """

    def __init__(self) -> None:
        self.scale: float | None = None
        self.norms: list[Tensor] = []

    def begin(self, loss: Tensor, num_tokens: Tensor) -> None:
        """Decide about the update whose backward pass follows: a loss that is not finite leaves it out.

        Args:
            loss: () in nats, summed over the utterances.
            num_tokens: (), target tokens of the update.
        """
        # waits for the device, as the sums over ranks do after a usual backward pass
        loss_value, tokens = devices.to_host(torch.stack([loss.detach(), num_tokens.to(loss)]))
        self.scale = 1 / max(1, tokens) if math.isfinite(loss_value) else None

    def __call__(self, gradient: Tensor) -> bool:
        """Scale a gradient (…) to nats per token; return whether its parameter may step."""
        if self.scale is None:
            return False
        self.norms.append(torch.linalg.vector_norm(gradient))
        gradient.mul_(self.scale)
        return True

    def end(self, update: int) -> Tensor:
        """Return the norm of all gradients of the update, before they were scaled.

        Raises:
            Diverged: it is not finite.
        """
        norms, self.norms, self.scale = self.norms, [], None
        norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        if not math.isfinite(devices.to_host(norm)):
            raise Diverged(
                f"the gradients of update {update} are not finite, and with trainer.step_in_backward=true the weights "
                "had changed before this was known; resume the run from its last checkpoint with "
                "trainer.step_in_backward=false, which skips such updates, or lower optimizer.lr"
            )
        return norm
