"""A layer of a Zipformer, and a stack of layers at one frame rate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.models.encoders.zipformer.attention import (
    HeadSize,
    NonlinAttention,
    RelPositionMultiheadAttentionWeights,
    SelfAttention,
    compact_rel_pos_encoding,
)
from asr.models.encoders.zipformer.modules import (
    WHOLE,
    BypassModule,
    Chunks,
    ConvolutionModule,
    FeedforwardModule,
    SimpleDownsample,
    StreamingCache,
    upsample,
)
from asr.models.encoders.zipformer.scaling import (
    LOG_SCALE_LIMIT,
    Balancer,
    BatchCount,
    BiasNorm,
    Event,
    FloatLike,
    ScheduledFloat,
    Whiten,
    limits,
    masked,
    whitening_schedule,
)


@dataclass(frozen=True)
class LayerSize:
    """What the layers of a stack have in common.

    Attributes:
        encoder_dim: width D.
        feedforward_dim: hidden width of the second feed-forward module; the first has 3/4 of it, the third 5/4.
        num_heads: attention heads.
        cnn_module_kernel: frames of the convolutions.
        head: widths of a head.
        causal: whether the convolutions keep to chunks.
    """

    encoder_dim: int
    feedforward_dim: int
    num_heads: int
    cnn_module_kernel: int
    head: HeadSize
    causal: bool


@dataclass(frozen=True)
class Frames:
    """What the layers of a stack must know about the frames of a batch.

    Attributes:
        pos_emb: (T + S − 1, P), relative.
        padding: (B, T) bool, true after an utterance's end.
        attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
        equal: (B, T or 1, S), in training: weights of a frame that attends equally to all that it may attend to.
        chunks: how convolutions divide an utterance; None: it is one chunk.
    """

    pos_emb: Tensor
    padding: Tensor
    attn_mask: Tensor
    chunks: Chunks | None
    equal: Tensor | None = None


@dataclass(frozen=True)
class LayerMasks:
    """Random masks and limits of a layer in a forward pass in training.

    Attributes:
        keep: (6, B, 1, 1), 0 for utterances that skip attention, the first convolution, the second feed-forward
            module, the second convolution, the third feed-forward module, or the whole layer; else 1.
        dropout: (B, 1, H) factors of the hidden channels of each feed-forward module.
        limits: (3, 2) of the scales of both bypasses and of the norm.
        equally: (), 1 in a pass in which the first head attends equally to all frames, else 0.
        pos_emb: (T + S − 1, P), 0 in a pass without positions.
    """

    keep: Tensor
    dropout: tuple[Tensor, Tensor, Tensor]
    limits: Tensor
    equally: Tensor
    pos_emb: Tensor


class ZipformerEncoderLayer(nn.Module):
    """Three feed-forward modules and, twice, attention and convolution, with attention weights computed once.

    Args:
        dropout: probability in training of each hidden channel of an utterance in the feed-forward modules.
        skip_rate: probability in training that an utterance goes past the layer.

    Reference:
        Yao et al. 2024, "Zipformer", arXiv:2310.11230.
        Differs: every parameter is used.
    """

    def __init__(self, batch_count: BatchCount, size: LayerSize, dropout: FloatLike, skip_rate: FloatLike) -> None:
        super().__init__()
        dim, hidden_dim, num_heads, kernel = (
            size.encoder_dim,
            size.feedforward_dim,
            size.num_heads,
            size.cnn_module_kernel,
        )
        # weights are drawn in this order: another one would be another initialization
        self.self_attn_weights = RelPositionMultiheadAttentionWeights(batch_count, dim, num_heads, size.head)
        self.feed_forward1 = FeedforwardModule(batch_count, dim, hidden_dim * 3 // 4)
        self.nonlin_attention = NonlinAttention(batch_count, dim)
        self.self_attn1 = SelfAttention(batch_count, dim, num_heads, size.head.value_head_dim)
        self.conv_module1 = ConvolutionModule(batch_count, dim, kernel, size.causal)
        self.feed_forward2 = FeedforwardModule(batch_count, dim, hidden_dim)
        self.bypass_mid = BypassModule(batch_count, dim)
        self.self_attn2 = SelfAttention(batch_count, dim, num_heads, size.head.value_head_dim)
        self.conv_module2 = ConvolutionModule(batch_count, dim, kernel, size.causal)
        self.feed_forward3 = FeedforwardModule(batch_count, dim, hidden_dim * 5 // 4)
        self.norm = BiasNorm(dim)
        self.bypass = BypassModule(batch_count, dim)
        self.size, self.batch_count, self.dropout, self.skip_rate = size, batch_count, dropout, skip_rate
        self.hidden_dims = hidden_dim * 3 // 4, hidden_dim, hidden_dim * 5 // 4
        self._set_bounds(batch_count)
        self._set_skip_rates(batch_count)
        attention, conv, ff = self.attention_skip_rate, self.conv_skip_rate, self.ff_skip_rate
        of_bypasses = (limits(batch_count, bypass.scale_min, 1.0) for bypass in (self.bypass_mid, self.bypass))
        of_norm = limits(batch_count, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT)
        rates = attention, conv, ff, conv, ff, skip_rate, dropout
        events = Event(self.pos_skip_rate), Event(self.const_attention_rate)
        self.place = batch_count.register(*rates, *events, *itertools.chain(*of_bypasses, of_norm))

    def _set_bounds(self, batch_count: BatchCount) -> None:
        """Set bounds on what the modules add, and on what the layer returns."""
        min_na, min_ff2, min_ff3 = (
            ScheduledFloat(batch_count, (0.0, first), (4000.0, last))
            for first, last in ((0.004, 0.02), (0.0, 0.1), (0.0, 0.2))
        )
        self.balancer_na = Balancer(batch_count, 0.3, 0.7, min_na, 100.0, probability=0.05)
        self.balancer_ff2 = Balancer(batch_count, 0.3, 0.7, min_ff2, 2.0, probability=0.05)
        self.balancer_ff3 = Balancer(batch_count, 0.3, 0.7, min_ff3, 4.0, probability=0.05)
        self.balancer1 = Balancer(batch_count, 0.45, 0.55, 0.2, 4.0)
        self.balancer2 = Balancer(batch_count, 0.45, 0.55, 0.1, 4.0)
        self.whiten = Whiten(batch_count, whitening_schedule(batch_count, 4.0, ratio=3.0))

    def _set_skip_rates(self, batch_count: BatchCount) -> None:
        """Set how often, in training, an utterance goes without a module."""
        early = (0.0, 0.2), (4000.0, 0.05), (16_000.0, 0.0)
        late = (0.0, 0.1), (4000.0, 0.01), (50_000.0, 0.0)
        self.attention_skip_rate = ScheduledFloat(batch_count, *early)
        self.conv_skip_rate = ScheduledFloat(batch_count, *early)
        self.ff_skip_rate = ScheduledFloat(batch_count, *late)
        self.const_attention_rate = ScheduledFloat(batch_count, (0.0, 0.25), (4000.0, 0.025))
        self.pos_skip_rate = ScheduledFloat(batch_count, (0.0, 0.5), (4000.0, 0.0))

    def forward(
        self, x: Tensor, frames: Frames, masks: LayerMasks | None = None, cache: StreamingCache = WHOLE
    ) -> Tensor:
        """Apply the layer to x (B, T, D) and to the cached frames before it; evaluation has no masks."""
        before, convolved = x, (frames.padding, frames.chunks, cache)
        # one mask for the three modules that attend: an utterance skips all of them or none
        keep_attention, keep_conv1, keep_feedforward2, keep_conv2, keep_feedforward3, keep_layer = (
            (None,) * 6 if masks is None else masks.keep
        )
        dropout1, dropout2, dropout3 = (None,) * 3 if masks is None else masks.dropout
        of_mid, of_bypass, of_norm = (None,) * 3 if masks is None else masks.limits
        pos_emb = frames.pos_emb if masks is None else masks.pos_emb
        weights = self.self_attn_weights(x, pos_emb, frames.attn_mask, cache)
        x = x + self.feed_forward1(x, dropout1)
        equally = None if masks is None or frames.equal is None else (frames.equal, masks.equally)
        nonlinear = self.nonlin_attention(x, weights, cache, equally)
        x = x + masked(self.balancer_na(nonlinear), keep_attention)
        x = x + masked(self.self_attn1(x, weights, cache), keep_attention)
        x = x + masked(self.conv_module1(x, *convolved), keep_conv1)
        x = x + masked(self.balancer_ff2(self.feed_forward2(x, dropout2)), keep_feedforward2)
        x = self.bypass_mid(before, x, of_mid)
        x = x + masked(self.self_attn2(x, weights, cache), keep_attention)
        x = x + masked(self.conv_module2(x, *convolved), keep_conv2)
        x = x + masked(self.balancer_ff3(self.feed_forward3(x, dropout3)), keep_feedforward3)
        x = self.bypass(before, self.norm(self.balancer1(x), of_norm), of_bypass, keep_layer)
        return self.whiten(self.balancer2(x))

    def is_plain(self) -> bool:
        """Return whether this is a plain forward pass, see `BatchCount`."""
        return self.batch_count.is_plain

    def cache_shapes(self, left_frames: int) -> tuple[tuple[int, int], ...]:
        """Return (frames, width) of what each module keeps between chunks, in the order of use."""
        size = self.size
        keys = left_frames, size.num_heads * size.head.query_head_dim
        nonlinear = left_frames, 3 * size.encoder_dim // 4
        values = left_frames, size.num_heads * size.head.value_head_dim
        convolved = size.cnn_module_kernel // 2, size.encoder_dim
        return keys, nonlinear, values, convolved, values, convolved


def sample_masks(layers: Sequence[ZipformerEncoderLayer], x: Tensor, pos_emb: Tensor) -> list[LayerMasks]:
    """Sample the masks of all layers of a stack at once.

    Args:
        layers: of one stack, after `BatchCount.begin_pass`.
        x: (B, T, D) input of the first layer; only its size, type and device are used.
        pos_emb: (T + S − 1, P), relative.
    """
    values = torch.stack([layer.batch_count.values[layer.place] for layer in layers])
    rates, dropout, limits = values[:, :6], values[:, 6], values[:, 9:].unflatten(1, (3, 2))
    # the mean over all frames now and then, so that nothing depends on sharp attention
    without_positions, equally = values[:, 7:9].to(x.dtype).t()
    positions = pos_emb * (1 - without_positions[:, None, None])
    size, num_layers, dims = len(x), len(layers), layers[0].hidden_dims
    keep = torch.rand(num_layers, 6, size, 1, 1, device=x.device) >= rates[:, :, None, None, None]
    factors = torch.rand(num_layers, size, 1, sum(dims), device=x.device) >= (dropout := dropout[:, None, None, None])
    factors = (factors / (1 - dropout)).to(x.dtype)
    of_layers = zip(keep.to(x.dtype), factors, limits, equally, positions, strict=True)
    return [LayerMasks(keep, factors.split(dims, dim=-1), *others) for keep, factors, *others in of_layers]


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
