"""What kernels share: blocks that stay in the cache of a CPU, and whether a graph is being traced."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from asr.models import devices

BLOCK_ELEMENTS = 2**19  # two megabytes of float32


def blocks(x: Tensor, row_elements: int | None = None) -> Iterator[slice]:
    """Return slices of the first dimension of x, each of about ``BLOCK_ELEMENTS`` elements, at least of one row.

    Temporary memory of a block is used again for the next one. On a CPU, fresh memory for all of x would take longer
    than the arithmetic. On an accelerator all of x is one block.

    Args:
        x: (N, …).
        row_elements: elements in a place of the first dimension, if more is made of x than x has; None: those of x.
    """
    num_rows = x.shape[0]
    row_elements = x[:1].numel() if row_elements is None else row_elements
    # in one: small kernels would leave a GPU idle, and its allocator keeps memory anyway;
    # at least 1, because a range with steps of 0 is an error: x may have no rows, or rows without elements
    size = max(1, num_rows) if devices.on_accelerator(x) else max(1, BLOCK_ELEMENTS // max(1, row_elements))
    return (slice(start, start + size) for start in range(0, num_rows, size))


def block_of(x: Tensor | None, block: slice) -> Tensor | None:
    """Return the rows of a block of x (N, …); None if x is None."""
    return None if x is None else x[block]


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which a matrix product of x (…) is computed: its own, or autocast's, which leaves 64 bits."""
    device = x.device.type
    is_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else x.dtype


def is_tracing() -> bool:
    """Return whether a graph is recorded now.

    Then modules compute what they always do, in operations that other programs have, and for any number of frames:
    autograd functions, loops over blocks, and views by strides would be recorded for the example alone, or not at all.
    """
    return bool(torch.jit.is_tracing()) or torch.compiler.is_compiling()  # type: ignore[attr-defined]
