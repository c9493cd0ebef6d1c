"""The meta device in the place of a GPU: it refuses CPU tensors beside its own, and whatever has to know a value."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from asr.models import devices
from asr.training.cuda_graphs import GraphedDDPStrategy

META = torch.device("meta")


@contextmanager
def reads_recorded() -> Iterator[list[str]]:
    """Let tensors of the meta device be read, as zeros; return which functions have read some."""
    readers, to_host, autocast = list[str](), devices.to_host, torch.autocast

    def read(x: Tensor) -> Any:
        if x.device != META:
            return to_host(x)
        readers.append(sys._getframe(1).f_code.co_qualname)
        return torch.zeros(x.shape, dtype=x.dtype).tolist()

    def autocast_but_for_meta(device_type: str, *args: Any, **kwargs: Any) -> Any:
        # torch (2.13) has none there
        return nullcontext() if device_type == "meta" else autocast(device_type, *args, **kwargs)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_ctc_loss.Tensor", _ctc_loss, "Meta")
        library.impl("_ctc_loss_backward.Tensor", _ctc_loss_backward, "Meta")
        with patch.object(devices, "to_host", read), patch.object(torch, "autocast", autocast_but_for_meta):
            yield readers
    finally:
        library._destroy()


# torch (2.13) has none for lengths in tensors; on CUDA it copies the lengths to the CPU, which waits
def _ctc_loss(log_probs: Tensor, tokens: Tensor, *lengths: Any, **options: Any) -> tuple[Tensor, Tensor]:
    num_frames, size, _ = log_probs.shape
    return log_probs.new_empty(size), log_probs.new_empty(size, num_frames, 2 * tokens.shape[1] + 1)


def _ctc_loss_backward(gradient: Tensor, log_probs: Tensor, *_: Any, **options: Any) -> Tensor:
    return torch.empty_like(log_probs)


class MetaAccelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """Accept any."""


class MetaRanks(GraphedDDPStrategy):
    """Ranks of which this process is the first; collectives send what is on the meta device, and nothing else.

    Without DistributedDataParallel, which needs values.
    """

    def configure_ddp(self) -> None:
        """Leave the module as it is."""
        self.buffers = list(self.model.buffers())  # type: ignore[union-attr]

    def determine_ddp_device_ids(self) -> None:
        """Return what is right for devices other than CUDA's."""


@contextmanager
def meta_ranks(world_size: int, captures: bool) -> Iterator[MetaRanks]:
    # a backend for one type of device refuses tensors of another, as NCCL does
    dist.init_process_group("meta:fake", store=FakeStore(), rank=0, world_size=world_size)
    environment = patch.dict(os.environ, RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    try:
        # torch's barrier sends a tensor of the CPU, unless the backend is called NCCL; objects need values
        with environment, patch.object(dist, "barrier"), patch.object(dist, "all_gather_object", _gather):
            yield MetaRanks(not captures, parallel_devices=[META] * world_size)
    finally:
        dist.destroy_process_group()


def _gather(parts: list[Any], mine: Any) -> None:
    parts[:] = [mine] * len(parts)


def meta_trainer(max_steps: int, strategy: Strategy | None = None, **options: Any) -> Trainer:
    trainer = Trainer(
        accelerator=MetaAccelerator(),
        strategy=strategy or SingleDeviceStrategy(device=META),
        max_steps=max_steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    # reads a tensor before every micro-batch of several ranks
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    # the rest of Lightning's (2.6) would copy weights and what was logged to the CPU, once at the end of a run
    trainer._teardown = trainer._signal_connector.teardown  # type: ignore[method-assign]
    return trainer
