"""Several GPUs whose gradients come from CUDA graphs: they would go past DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from asr.training.loop_counters import ends_update


class CapturedDDPStrategy(DDPStrategy):
    """Averages all gradients at once at the end of an update, and sends the first rank's buffers to others.

    Nothing is sent during the backward pass, so ranks wait for 4 bytes of each parameter after it. A single rank needs
    no DistributedDataParallel in any case.

    Args:
        wraps: whether several ranks have DistributedDataParallel after all: nothing is captured there.
    """

    def __init__(self, wraps: bool, **options: Any) -> None:
        super().__init__(**options)
        self.wraps = wraps
        self.buffers: list[Tensor] = []  # of all modules, which buffers() would walk through at each update

    @property
    def averages(self) -> bool:
        """Whether this strategy averages gradients by itself."""
        return self.world_size > 1 and not self.wraps

    def configure_ddp(self) -> None:
        """Begin all ranks with the same weights."""
        if self.wraps and self.world_size > 1:
            super().configure_ddp()
            return
        assert self.model is not None
        _sync_module_states(self.model)
        self.buffers = list(self.model.buffers())

    def post_backward(self, closure_loss: Tensor) -> None:
        """Do at the end of an update what DistributedDataParallel does; the loss () is only passed on.

        Raises:
            RuntimeError: a parameter has no gradient, which other ranks might have.
        """
        super().post_backward(closure_loss)
        module: Any = self.lightning_module
        if not self.averages or not ends_update(module.trainer):
            return
        trained = [p for p in module.all_parameters if p.requires_grad]
        gradients = [p.grad for p in trained if p.grad is not None]
        if len(gradients) < len(trained):
            missing = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
            raise RuntimeError(
                f"parameters without a gradient: {', '.join(missing[:3])}; with trainer.capture=true on several GPUs "
                "each trained parameter needs one in every update: freeze or remove these"
            )
        at_once(gradients, lambda flat: dist.all_reduce(flat.div_(self.world_size)))
        at_once(self.buffers, lambda flat: dist.broadcast(flat, src=0))


def at_once(tensors: Sequence[Tensor], collective: Callable[[Tensor], Any]) -> None:
    """Apply a collective operation in place to tensors (…), once for all of a dtype."""
    for dtype in dict.fromkeys(x.dtype for x in tensors):  # in the same order on all ranks
        alike = [x for x in tensors if x.dtype == dtype]
        flat = _flatten_dense_tensors(alike)
        collective(flat)
        torch._foreach_copy_(alike, _unflatten_dense_tensors(flat, alike))
