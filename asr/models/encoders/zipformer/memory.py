"""What comes before a chunk: nothing where the utterance is there as a whole, else what was kept of earlier chunks.

B batch, T frames, P frames that are kept, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Whole:
    """The utterance is there as a whole."""

    def extend(self, x: Tensor) -> Tensor:
        """Return x (B, T, D)."""
        return x

    def pad(self, x: Tensor, num_frames: int) -> Tensor:
        """Return x (B, T, D) behind ``num_frames`` of zeros."""
        return F.pad(x, (0, 0, num_frames, 0))


class Stream:
    """What a layer's modules kept of earlier chunks, in the order in which they ask.

    Args:
        past: (B, P, D) each, P and D of each module's own.
    """

    def __init__(self, past: Sequence[Tensor]) -> None:
        self.past = past
        self.kept: list[Tensor] = []

    def extend(self, x: Tensor) -> Tensor:
        """Return x (B, T, D) behind what was kept (B, P + T, D), and keep its last P frames."""
        extended = torch.cat((self.past[len(self.kept)], x), dim=1)
        self.kept.append(extended[:, x.shape[1] :])
        return extended

    def pad(self, x: Tensor, num_frames: int) -> Tensor:
        """Do as `extend`, where ``num_frames`` are kept."""
        extended = self.extend(x)
        assert extended.shape[1] == x.shape[1] + num_frames
        return extended


Memory = Whole | Stream
WHOLE = Whole()
