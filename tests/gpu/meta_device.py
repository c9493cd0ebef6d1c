"""The meta device in the place of a GPU: it refuses CPU tensors beside its own, and whatever has to know a value."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

from asr import devices

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


def meta_trainer(max_steps: int, **options: Any) -> Trainer:
    trainer = Trainer(
        accelerator=MetaAccelerator(),
        strategy=SingleDeviceStrategy(device=META),
        max_steps=max_steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    # the rest of Lightning's (2.6) would copy weights and what was logged to the CPU, once at the end of a run
    trainer._teardown = trainer._signal_connector.teardown  # type: ignore[method-assign]
    return trainer
