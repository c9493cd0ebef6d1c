"""Large tensors in pieces that stay in the cache of a CPU."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

NUM_ELEMENTS = 2**19  # two megabytes of float32


def pieces(x: Tensor, row_elements: int | None = None) -> Iterator[slice]:
    """Return slices of the first dimension of x, each of about this many elements; a GPU takes all at once.

    ``row_elements`` says how many there are at each place of that dimension, where more is made of x than x has.

    Temporary memory of a piece is used again for the next. Fresh memory for the whole would take longer than the
    arithmetic.
    """
    num = x.shape[0]
    row_elements = x[:1].numel() if row_elements is None else row_elements
    size = max(1, num) if x.is_cuda else max(1, NUM_ELEMENTS // max(1, row_elements))
    return (slice(start, start + size) for start in range(0, num, size))


def part(x: Tensor | None, piece: slice) -> Tensor | None:
    """Return a piece of a tensor that may be missing."""
    return None if x is None else x[piece]
