"""Whether a forward pass is being recorded as a graph, for an export."""

from __future__ import annotations

import torch


def is_tracing() -> bool:
    """Return whether a graph is recorded now.

    Then modules compute what they always do, in operations that other programs have, and for any number of frames:
    autograd functions, loops over blocks, and views by strides would be recorded for the example alone, or not at all.
    """
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]
