"""Chunks of an utterance: how far frames may see, and what is kept of earlier chunks.

B batch, T frames at 50 Hz, P frames that are kept, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.models.encoders.zipformer import scaling

ALL = -1


@dataclass(frozen=True)
class Chunks:
    """A way to divide an utterance.

    Attributes:
        size: frames of a chunk: a number, or, on a GPU, (), so that passes with any size launch the same kernels.
        left_context: chunks before its own that a frame may attend to; None: all. A number or () likewise.
        smallest: least size that may be drawn.
    """

    size: Any
    left_context: Any
    smallest: int

    def downsampled(self, factor: int) -> Chunks:
        """Return the same chunks at a frame rate that is lower by a factor, which divides their size."""
        return Chunks(self.size // factor, self.left_context, self.smallest // factor)

    def hidden(self, num_frames: int, device: torch.device) -> Tensor:
        """Return (T, T) true where a frame must not attend to: in later chunks, and in those too far back."""
        chunk = torch.arange(num_frames, device=device) // self.size
        ahead = chunk.unsqueeze(0) - chunk.unsqueeze(1)
        return ahead > 0 if self.left_context is None else (ahead > 0) | (ahead < -self.left_context)


def draw_chunks(chunk_size: Sequence[int], left_context_frames: Sequence[int]) -> Chunks | None:
    """Draw a size of chunks, and how far back they may see; None: the whole utterance is one chunk.

    Args:
        chunk_size: sizes to draw from, in frames; -1 is the whole utterance.
        left_context_frames: numbers to draw from; -1 is everything; at least one chunk is always seen.
    """
    size = _one_of(chunk_size)
    if size == ALL:
        return None
    left = _one_of(left_context_frames)
    smallest = min(size for size in chunk_size if size != ALL)
    return Chunks(size, None if left == ALL else max(1, left // size), smallest)


def _one_of(choices: Sequence[int]) -> int:
    # of one choice nothing is drawn: decoding must not advance the generator
    return choices[int(scaling.draw() * len(choices))] if len(choices) > 1 else choices[0]


class StreamingCache:
    """What a layer's modules keep of earlier chunks, in the order in which they ask for it.

    Args:
        past: (B, P, D) of each module, with its own P and D; None: there are no chunks, but the whole utterance.
    """

    def __init__(self, past: Sequence[Tensor] | None = None) -> None:
        self.past = past
        self.kept: list[Tensor] = []

    def extend(self, x: Tensor) -> Tensor:
        """Return x (B, T, D) after the kept frames, (B, P + T, D), and keep the last P of them; a whole x as it is."""
        if self.past is None:
            return x
        # modules ask in the same order in every chunk, so that their number in this one tells whose past it is
        extended = torch.cat((self.past[len(self.kept)], x), dim=1)
        self.kept.append(extended[:, x.shape[1] :])
        return extended

    def pad(self, x: Tensor, num_frames: int) -> Tensor:
        """Return x (B, T, D) after ``num_frames`` frames: those that are kept, or zeros before a whole x."""
        if self.past is None:
            return F.pad(x, (0, 0, num_frames, 0))
        extended = self.extend(x)
        assert extended.shape[1] == x.shape[1] + num_frames
        return extended


WHOLE = StreamingCache()
