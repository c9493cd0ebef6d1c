"""Large tensors in pieces that stay in the cache of a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

NUM_ELEMENTS = 2**19  # two megabytes of float32


def pieces(x: Tensor) -> Iterator[slice]:
    """Return slices of the first dimension of x, each of about this many elements; a GPU takes all at once.

    Temporary memory of a piece is used again for the next. Fresh memory for the whole would take longer than the
    arithmetic.
    """
    num = x.shape[0]
    size = max(1, num) if x.is_cuda else max(1, NUM_ELEMENTS // max(1, x[:1].numel()))
    return (slice(start, start + size) for start in range(0, num, size))
