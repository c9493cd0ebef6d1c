"""A stack of Zipformer layers at a frame rate of its own.

B batch, T frames at 50 Hz, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.encoders.zipformer.bypass import Bypass
from asr.models.encoders.zipformer.chunks import Chunks
from asr.models.encoders.zipformer.layer import Frames, LayerSize, ZipformerLayer
from asr.models.encoders.zipformer.memory import Stream
from asr.models.encoders.zipformer.positions import relative_positions
from asr.models.encoders.zipformer.resample import Downsample, upsample
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock, Value

INITIAL_SKIP, FINAL_SKIP = 0.5, 0.035
POSITION_DROPOUT = 0.15
UNSEEN = -1000.0  # its exponential is 0, and yet a row of it alone has a softmax


class ZipformerStack(nn.Module):
    """Downsampling, layers, upsampling, and a bypass around them all; at the full rate there are the layers alone.

    Early in training layers are skipped half of the time; that ends for one layer after the other.

    Args:
        clock: of what is scheduled.
        size: of each layer.
        num_layers: at least 1.
        factor: frames that become one.
        dropout: probability in the feed-forward modules.
        warmup: batches between which the skipping of layers becomes rare.

    Reference:
        ``ZipformerEncoder`` and ``DownsampledZipformerEncoder`` of icefall.
        Differs: initial weights are drawn for each layer; the authors' layers of a stack all begin as copies of one.
    """

    def __init__(
        self,
        clock: TrainingClock,
        size: LayerSize,
        num_layers: int,
        factor: int,
        dropout: Value,
        warmup: tuple[float, float],
    ) -> None:
        super().__init__()
        self.factor, self.position_width = factor, size.position_width
        begin, step = warmup[0], (warmup[1] - warmup[0]) / num_layers
        final = FINAL_SKIP * factor**0.5
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            skip = Scheduled(clock, (begin, INITIAL_SKIP), (begin + step, final))
            self.layers.append(ZipformerLayer(clock, size, dropout, skip))
            begin += step
        self.downsample = Downsample(factor) if factor > 1 else None
        self.bypass = Bypass(clock, size.d_model) if factor > 1 else None

    def forward(self, x: Tensor, lengths: Tensor, channel_mask: Tensor | None, chunks: Chunks | None) -> Tensor:
        """Apply the stack.

        Args:
            x: (B, T, D).
            lengths: (B,) valid frames.
            channel_mask: (B, 1, D) factors that go before, between and behind the layers; None: none.
            chunks: of a size that is a multiple of ``factor``; None: the whole utterance is one.
        """
        if self.downsample is None or self.bypass is None:
            return self._layers(x, lengths, channel_mask, chunks)
        factor = self.factor
        chunks = None if chunks is None else chunks.every(factor)
        few = self._layers(self.downsample(x, lengths), (lengths + factor - 1) // factor, channel_mask, chunks)
        return self.bypass(x, upsample(few, factor, x.shape[1]))

    def _layers(self, x: Tensor, lengths: Tensor, channel_mask: Tensor | None, chunks: Chunks | None) -> Tensor:
        num_frames = x.shape[1]
        padding = torch.arange(num_frames, device=x.device) >= lengths.unsqueeze(1)
        masked = padding[:, None, None, :]
        if chunks is not None:
            masked = masked | chunks.hidden(num_frames, x.device)
        unseen = torch.where(masked, UNSEEN, 0.0).to(x.dtype)
        positions = relative_positions(num_frames, num_frames, self.position_width, x.device)
        positions = F.dropout(positions.to(x.dtype), POSITION_DROPOUT, self.training)
        frames = Frames(positions, padding, unseen, None if chunks is None else chunks.num_frames)
        x = x if channel_mask is None else x * channel_mask
        for layer in self.layers:
            x = layer(x, frames)
            x = x if channel_mask is None else x * channel_mask
        return x

    def memory_shapes(self, left_frames: int) -> list[tuple[tuple[int, int], ...]]:
        """Return what each layer keeps between chunks that see ``left_frames`` at 50 Hz before them."""
        layers = (layer for layer in self.layers if isinstance(layer, ZipformerLayer))
        return [layer.memory_shapes(left_frames // self.factor) for layer in layers]

    def stream(
        self, x: Tensor, lengths: Tensor, past: Sequence[Sequence[Tensor]], num_processed: Tensor, left_frames: int
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Apply the stack to a chunk.

        Args:
            x: (B, T, D), one chunk.
            lengths: (B,) valid frames of it.
            past: what each layer has kept, see `Stream`.
            num_processed: (B,) frames before the chunk.
            left_frames: of them that are seen.

        Returns:
            (B, T, D), and what each layer keeps.
        """
        factor, kept = self.factor, list[tuple[Tensor, ...]]()
        few = x if self.downsample is None else self.downsample(x, lengths)
        frames = self._chunk(few, (lengths + factor - 1) // factor, num_processed // factor, left_frames // factor)
        for layer, layer_past in zip(self.layers, past, strict=True):
            memory = Stream(layer_past)
            few = layer(few, frames, memory)
            kept.append(tuple(memory.kept))
        return few if self.bypass is None else self.bypass(x, upsample(few, factor, x.shape[1])), kept

    def _chunk(self, x: Tensor, lengths: Tensor, num_processed: Tensor, num_left: int) -> Frames:
        num_frames = x.shape[1]
        padding = torch.arange(num_frames, device=x.device) >= lengths.unsqueeze(1)
        missing = torch.arange(num_left, device=x.device) < (num_left - num_processed).unsqueeze(1)
        masked = torch.cat((missing, padding), dim=1)[:, None, None, :]
        positions = relative_positions(num_frames, num_left + num_frames, self.position_width, x.device)
        return Frames(positions.to(x.dtype), padding, torch.where(masked, UNSEEN, 0.0).to(x.dtype), num_frames)
