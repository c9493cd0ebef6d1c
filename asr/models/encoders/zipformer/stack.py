"""A stack of Zipformer layers at its own frame rate.

B batch, T frames at 50 Hz, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.encoders.zipformer.attention import compact_rel_pos_encoding
from asr.models.encoders.zipformer.chunks import Chunks, StreamingCache
from asr.models.encoders.zipformer.layer import Frames, LayerSize, ZipformerEncoderLayer, sample_masks
from asr.models.encoders.zipformer.modules import BypassModule, SimpleDownsample, upsample
from asr.models.encoders.zipformer.scaling import BatchCount, FloatLike, ScheduledFloat, limits

INITIAL_SKIP_RATE, FINAL_SKIP_RATE = 0.5, 0.035
POS_DROPOUT = 0.15
HIDDEN = -1000.0  # added to a score, it makes the weight 0; -inf alone in a row would make its softmax NaN


class ZipformerStack(nn.Module):
    """Downsampling, layers, upsampling, and a bypass around them all; at the full rate only the layers.

    Early in training layers are skipped half of the time; this ends for one layer after the other.

    Args:
        num_layers: at least 1.
        factor: frames that become one.
        dropout: probability in the feed-forward modules.
        warmup: batches between which the skipping of layers becomes rare.

    Reference:
        ``Zipformer2Encoder`` and ``DownsampledZipformer2Encoder`` of icefall.
        Differs: initial weights are drawn for each layer; the authors' layers of a stack all begin as copies of one.
    """

    def __init__(
        self,
        batch_count: BatchCount,
        size: LayerSize,
        num_layers: int,
        factor: int,
        dropout: FloatLike,
        warmup: tuple[float, float],
    ) -> None:
        super().__init__()
        self.batch_count, self.factor, self.pos_dim = batch_count, factor, size.head.pos_dim
        begin, step = warmup[0], (warmup[1] - warmup[0]) / num_layers
        final = FINAL_SKIP_RATE * factor**0.5
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            skip_rate = ScheduledFloat(batch_count, (begin, INITIAL_SKIP_RATE), (begin + step, final))
            self.layers.append(ZipformerEncoderLayer(batch_count, size, dropout, skip_rate))
            begin += step
        # at the full rate neither exists: parameters that nothing uses would have no gradient
        self.downsample = SimpleDownsample(factor) if factor > 1 else None
        self.out_combiner = BypassModule(batch_count, size.encoder_dim) if factor > 1 else None
        if self.out_combiner is not None:
            self.limits = batch_count.register(*limits(batch_count, self.out_combiner.scale_min, 1.0))

    def forward(self, x: Tensor, lengths: Tensor, channel_mask: Tensor | None, chunks: Chunks | None) -> Tensor:
        """Apply the stack.

        Args:
            x: (B, T, D).
            lengths: (B,) valid frames.
            channel_mask: (B, 1, D) factors before, between and after the layers; None: no factors.
            chunks: of a size that is a multiple of ``factor``; None: the whole utterance is one.
        """
        if self.downsample is None or self.out_combiner is None:
            return self._layers(x, lengths, channel_mask, chunks)
        factor = self.factor
        chunks = None if chunks is None else chunks.downsampled(factor)
        few = self._layers(self.downsample(x, lengths), (lengths + factor - 1) // factor, channel_mask, chunks)
        of_scale = self.batch_count.values[self.limits] if self.training else None
        return self.out_combiner(x, upsample(few, factor, x.shape[1]), of_scale)

    def _layers(self, x: Tensor, lengths: Tensor, channel_mask: Tensor | None, chunks: Chunks | None) -> Tensor:
        num_frames = x.shape[1]
        padding = torch.arange(num_frames, device=x.device) >= lengths.unsqueeze(1)
        hidden = padding[:, None, None, :]
        if chunks is not None:
            hidden = hidden | chunks.hidden(num_frames, x.device)
        pos_emb = compact_rel_pos_encoding(num_frames, num_frames, self.pos_dim, x.device).to(x.dtype)
        pos_emb = F.dropout(pos_emb, POS_DROPOUT, self.training)
        attn_mask = torch.where(hidden, HIDDEN, 0.0).to(x.dtype)
        equal = None
        if self.training:
            visible = (~hidden.squeeze(1)).to(x.dtype)
            equal = visible / visible.sum(dim=-1, keepdim=True).clamp(min=1)  # 1: padding utterances have no frames
        frames = Frames(pos_emb, padding, attn_mask, chunks, equal)
        x = x if channel_mask is None else x * channel_mask
        layers = cast("list[ZipformerEncoderLayer]", list(self.layers))
        masks = sample_masks(layers, x, pos_emb) if self.training else [None] * len(layers)
        for layer, layer_masks in zip(layers, masks, strict=True):
            x = layer(x, frames, layer_masks)
            # again: biases have filled the masked channels
            x = x if channel_mask is None else x * channel_mask
        return x

    def cache_shapes(self, left_frames: int) -> list[tuple[tuple[int, int], ...]]:
        """Return what each layer keeps between chunks that see ``left_frames`` at 50 Hz before them."""
        layers = (layer for layer in self.layers if isinstance(layer, ZipformerEncoderLayer))
        return [layer.cache_shapes(left_frames // self.factor) for layer in layers]

    def stream(
        self, x: Tensor, lengths: Tensor, past: Sequence[Sequence[Tensor]], num_processed: Tensor, left_frames: int
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Apply the stack to a chunk.

        Args:
            x: (B, T, D), one chunk.
            lengths: (B,) valid frames of it.
            past: what each layer has kept, see `StreamingCache`.
            num_processed: (B,) frames before the chunk.
            left_frames: how many of them attention sees.

        Returns:
            (B, T, D), and what each layer keeps.
        """
        factor, new_past = self.factor, list[tuple[Tensor, ...]]()
        few = x if self.downsample is None else self.downsample(x, lengths)
        frames = self._chunk(few, (lengths + factor - 1) // factor, num_processed // factor, left_frames // factor)
        for layer, layer_past in zip(self.layers, past, strict=True):
            cache = StreamingCache(layer_past)
            few = layer(few, frames, None, cache)
            new_past.append(tuple(cache.kept))
        return few if self.out_combiner is None else self.out_combiner(x, upsample(few, factor, x.shape[1])), new_past

    def _chunk(self, x: Tensor, lengths: Tensor, num_processed: Tensor, num_left: int) -> Frames:
        num_frames = x.shape[1]
        padding = torch.arange(num_frames, device=x.device) >= lengths.unsqueeze(1)
        # at first the cache holds zeros, which are no frames
        missing = torch.arange(num_left, device=x.device) < (num_left - num_processed).unsqueeze(1)
        hidden = torch.cat((missing, padding), dim=1)[:, None, None, :]
        pos_emb = compact_rel_pos_encoding(num_frames, num_left + num_frames, self.pos_dim, x.device)
        chunk = Chunks(num_frames, None, num_frames)
        return Frames(pos_emb.to(x.dtype), padding, torch.where(hidden, HIDDEN, 0.0).to(x.dtype), chunk)
