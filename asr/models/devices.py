"""Devices: whether a tensor is on an accelerator, copies to the host, memory of CUDA graphs, seeds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def on_accelerator(x: Tensor) -> bool:
    """Return whether x (…) is not on a CPU: then few large kernels are fast, and the host must not wait for results."""
    return x.device.type != "cpu"


def to_host(x: Tensor) -> Any:
    """Return the numbers of x (…), in nested lists unless x is a scalar; the host waits until they are computed."""
    return x.tolist()


def idle_graph_memory() -> int:
    """Return the bytes that the memory pools of CUDA graphs keep, of this GPU, and that no tensor uses."""
    device = torch.cuda.current_device()
    pools = (part for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) != (0, 0))
    return sum(part["total_size"] - part["allocated_size"] for part in pools if part["device"] == device)


def seed(number: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of a device."""
    # torch.manual_seed (2.13) keeps a stack trace of each call, for kinds of devices that may be used later
    torch.default_generator.manual_seed(number)
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed(number)
