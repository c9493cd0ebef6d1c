"""How far frames may see where an encoder works in chunks.

T frames at 50 Hz.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.models.encoders.zipformer import schedule

ALL = -1


@dataclass(frozen=True)
class Chunks:
    """A way to divide an utterance.

    Attributes:
        num_frames: of a chunk.
        num_left: chunks before its own that a frame may attend to; None: all.
    """

    num_frames: int
    num_left: int | None

    def every(self, factor: int) -> Chunks:
        """Return the same chunks where there is one frame in ``factor``, which their size is a multiple of."""
        return Chunks(self.num_frames // factor, self.num_left)

    def hidden(self, num_frames: int, device: torch.device) -> Tensor:
        """Return (T, T) true where a frame must not attend to: in later chunks, and in those too far back."""
        chunk = torch.arange(num_frames, device=device) // self.num_frames
        ahead = chunk.unsqueeze(0) - chunk.unsqueeze(1)
        return ahead > 0 if self.num_left is None else (ahead > 0) | (ahead < -self.num_left)


def draw_chunks(chunk_frames: Sequence[int], left_context_frames: Sequence[int]) -> Chunks | None:
    """Draw a size of chunks, and how far back they may see; None: the whole utterance is one chunk.

    Args:
        chunk_frames: sizes to draw from; -1 is the whole utterance.
        left_context_frames: to draw from; -1 is everything; at least one chunk is always seen.
    """
    size = _one_of(chunk_frames)
    if size == ALL:
        return None
    left = _one_of(left_context_frames)
    return Chunks(size, None if left == ALL else max(1, left // size))


def _one_of(choices: Sequence[int]) -> int:
    return choices[int(schedule.draw() * len(choices))] if len(choices) > 1 else choices[0]
