"""Where tensors are."""

from __future__ import annotations

from torch import Tensor


def on_accelerator(x: Tensor) -> bool:
    """Return whether x is not on a CPU: then few large kernels are fast, and the host must not wait for results."""
    return x.device.type != "cpu"
