"""Depthwise convolution over time that keeps to chunks.

B batch, T frames, D channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.depthwise import DepthwiseConvolution, depthwise
from asr.models.encoders.zipformer.initial import BIAS_RANGE
from asr.models.encoders.zipformer.memory import Memory


class CausalConvolution(nn.Module):
    """Depthwise convolution that sees the past, and the future no further than the end of the frame's chunk.

    A causal convolution of half the width, plus one of the whole width within each chunk, whose output is multiplied by
    1 + learned edges, because near its ends a chunk lacks neighbours.

    Reference:
        ``ChunkCausalDepthwiseConv1d`` of icefall.
        Differs: neither the end of a batch nor an utterance shorter than a chunk makes a chunk shorter.
    """

    def __init__(self, channels: int, kernel_width: int) -> None:
        super().__init__()
        self.kernel_width = kernel_width
        self.past = nn.Conv1d(channels, channels, (kernel_width + 1) // 2, groups=channels)
        assert self.past.bias is not None
        nn.init.uniform_(self.past.bias, -BIAS_RANGE, BIAS_RANGE)
        self.within = DepthwiseConvolution(channels, kernel_width)
        self.edges = nn.Parameter(torch.zeros(2, channels, kernel_width))

    def forward(self, x: Tensor, lengths: Tensor, chunk_frames: int | None, memory: Memory) -> Tensor:
        """Convolve x (B, T, D) of valid lengths (B,) in chunks; None makes each utterance one chunk."""
        past = memory.pad(x, self.kernel_width // 2)
        past = depthwise(past, self.past.weight, self.past.bias)  # type: ignore[arg-type]
        if chunk_frames is None:
            return past + self.within(x) * self.edge_scale(x.shape[1], lengths)
        chunks = F.pad(x, (0, 0, 0, -x.shape[1] % chunk_frames)).unflatten(1, (-1, chunk_frames))
        ends = torch.tensor([chunk_frames], device=x.device)
        within = self.within(chunks.flatten(0, 1)) * self.edge_scale(chunk_frames, ends)
        return past + within.unflatten(0, chunks.shape[:2]).flatten(1, 2)[:, : x.shape[1]]

    def edge_scale(self, num_frames: int, ends: Tensor) -> Tensor:
        """Return factors (E, T, D) for the T frames of chunks that end at ``ends`` (E,)."""
        # the last row is for frames that are not near an edge
        left, right = F.pad(self.edges, (0, 1)).mT
        frames, far = torch.arange(num_frames, device=ends.device), self.kernel_width
        place = frames + far - ends.unsqueeze(1)
        place = torch.where((place >= 0) & (place < far), place, far)
        return 1.0 + left[frames.clamp(max=far)] + right[place]
