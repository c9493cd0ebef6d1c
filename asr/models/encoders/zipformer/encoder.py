"""The Zipformer: its layers, stacks of them at several frame rates, whole utterances and streaming.

B batch, T frames, S frames that are attended to, P frames that are kept or channels of a distance, D width, H hidden
channels, F mel bins.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from asr.models.encoders.streaming import (
    ALL,
    FEATURE_CONTEXT,
    OUTPUT_DOWNSAMPLING_FACTOR,
    WHOLE,
    Choices,
    ChunkedEncoder,
    Chunks,
    ChunkSampler,
    StreamingCache,
)
from asr.models.encoders.zipformer.modules import (
    PENALTY_PROBABILITY,
    BypassModule,
    ConvolutionModule,
    FeedforwardModule,
    LayerSize,
    NonlinAttention,
    RelPositionMultiheadAttentionWeights,
    SelfAttention,
    SimpleDownsample,
    added_mask,
    compact_rel_pos_encoding,
)
from asr.models.encoders.zipformer.scaling import LOG_SCALE_LIMIT, Balancer, BiasNorm, Whiten, masked
from asr.models.encoders.zipformer.schedules import BatchCount, Event, FloatLike, ScheduledFloat, limits
from asr.models.encoders.zipformer.subsampling import CONTEXT, ZipformerSubsampling
from asr.models.kernels import is_padding

INITIAL_SKIP_RATE, FINAL_SKIP_RATE = 0.5, 0.035
POS_DROPOUT = 0.15
WARMUP_BATCHES = 4000.0
MASK_PROBABILITY = 0.125  # for each of two parts of the channels

HiddenDim = Annotated[int, Field(ge=4)]  # of which three quarters are at least one channel, and a quarter too
EvenDim = Annotated[int, Field(ge=2, multiple_of=2)]
InitialDropout = Annotated[float, Field(ge=0, lt=1 / 3)]  # it begins three times as large


@dataclass(frozen=True)
class Frames:
    """Frames of a batch, as the layers of a stack see them.

    Attributes:
        padding: (B, T) bool, true after an utterance's end.
        attn_mask: (B, 1, T or 1, S), 0 where a frame may attend to, far below 0 elsewhere.
        chunks: how convolutions divide an utterance; None: it is one chunk.
    """

    padding: Tensor
    attn_mask: Tensor
    chunks: Chunks | None


@dataclass(frozen=True)
class LayerMasks:
    """Random masks and limits of a layer in a forward pass in training; in evaluation all are None but for positions.

    Attributes:
        pos_emb: (T + S − 1, P), relative; 0 in a pass without positions.
        keep: (6, B, 1, 1), 0 for utterances that skip attention, the first convolution, the second feed-forward
            module, the second convolution, the third feed-forward module, or the whole layer; else 1.
        dropout: (B, 1, H) factors of the hidden channels of each feed-forward module.
        limits: (3, 2) of the scales of both bypasses and of the norm.
        equally: weights (B, T or 1, S) of frames that attend equally to all that they may attend to; and (), 1 in a
            pass in which the first head has these, else 0.
    """

    pos_emb: Tensor
    keep: Tensor | Sequence[None] = (None,) * 6
    dropout: Sequence[Tensor | None] = (None,) * 3
    limits: Tensor | Sequence[None] = (None,) * 3
    equally: tuple[Tensor, Tensor] | None = None


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
        dim, hidden_dim = size.encoder_dim, size.feedforward_dim
        self.hidden_dims = hidden_dim * 3 // 4, hidden_dim, hidden_dim * 5 // 4
        first, second, third = self.hidden_dims
        # weights are drawn in this order: another one would be another initialization
        self.self_attn_weights = RelPositionMultiheadAttentionWeights(batch_count, size)
        self.feed_forward1 = FeedforwardModule(batch_count, dim, first)
        self.nonlin_attention = NonlinAttention(batch_count, dim)
        self.self_attn1 = SelfAttention(batch_count, size)
        self.conv_module1 = ConvolutionModule(batch_count, size)
        self.feed_forward2 = FeedforwardModule(batch_count, dim, second)
        self.bypass_mid = BypassModule(batch_count, dim)
        self.self_attn2 = SelfAttention(batch_count, size)
        self.conv_module2 = ConvolutionModule(batch_count, size)
        self.feed_forward3 = FeedforwardModule(batch_count, dim, third)
        self.norm = BiasNorm(dim)
        self.bypass = BypassModule(batch_count, dim)
        self.size, self.batch_count, self.dropout, self.skip_rate = size, batch_count, dropout, skip_rate
        self._set_bounds(batch_count)
        # how often, in training, an utterance goes without a module
        early = ScheduledFloat(batch_count, (0.0, 0.2), (4000.0, 0.05), (16_000.0, 0.0))
        late = ScheduledFloat(batch_count, (0.0, 0.1), (4000.0, 0.01), (50_000.0, 0.0))
        self.attention_skip_rate, self.conv_skip_rate, self.ff_skip_rate = early, early, late
        self.const_attention_rate = ScheduledFloat(batch_count, (0.0, 0.25), (4000.0, 0.025))
        self.pos_skip_rate = ScheduledFloat(batch_count, (0.0, 0.5), (4000.0, 0.0))
        of_bypasses = (limits(batch_count, bypass.scale_min, 1.0) for bypass in (self.bypass_mid, self.bypass))
        of_norm = limits(batch_count, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT)
        rates = early, early, late, early, late, skip_rate, dropout
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
        self.whiten = Whiten(batch_count, 4.0, ratio=3.0)

    def forward(self, x: Tensor, frames: Frames, masks: LayerMasks, cache: StreamingCache) -> Tensor:
        """Apply the layer to x (B, T, D) and to the cached frames before it."""
        before, convolved = x, (frames.padding, frames.chunks, cache)
        # one mask for the three modules that attend: an utterance skips all of them or none
        keep_attention, keep_conv1, keep_feedforward2, keep_conv2, keep_feedforward3, keep_layer = masks.keep
        dropout1, dropout2, dropout3 = masks.dropout
        of_mid, of_bypass, of_norm = masks.limits
        weights = self.self_attn_weights(x, masks.pos_emb, frames.attn_mask, cache)
        x = x + self.feed_forward1(x, dropout1)
        nonlinear = self.nonlin_attention(x, weights, cache, masks.equally)
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
        keys = left_frames, size.num_heads * size.query_head_dim
        nonlinear = left_frames, 3 * size.encoder_dim // 4
        values = left_frames, size.num_heads * size.value_head_dim
        convolved = size.cnn_module_kernel // 2, size.encoder_dim
        return keys, nonlinear, values, convolved, values, convolved


def sample_masks(layers: Sequence[ZipformerEncoderLayer], pos_emb: Tensor, hidden: Tensor) -> list[LayerMasks]:
    """Sample the masks of all layers of a stack at once.

    Args:
        layers: of one stack, after `BatchCount.begin_pass`.
        pos_emb: (T + S − 1, P), relative; of the type of the layers' input.
        hidden: (B, 1, T or 1, S) bool, true where a frame must not attend to.
    """
    dtype, device = pos_emb.dtype, pos_emb.device
    visible = (~hidden.squeeze(1)).to(dtype)
    equal = visible / visible.sum(dim=-1, keepdim=True).clamp(min=1)  # 1: padding utterances have no frames
    values = torch.stack([layer.batch_count.values[layer.place] for layer in layers])
    rates, dropout, limits = values[:, :6], values[:, 6], values[:, 9:].unflatten(1, (3, 2))
    # the mean over all frames now and then, so that nothing depends on sharp attention
    without_positions, equally = values[:, 7:9].to(dtype).t()
    positions = pos_emb * (1 - without_positions[:, None, None])
    size, num_layers, dims = len(hidden), len(layers), layers[0].hidden_dims
    keep = torch.rand(num_layers, 6, size, 1, 1, device=device) >= rates[:, :, None, None, None]
    factors = torch.rand(num_layers, size, 1, sum(dims), device=device) >= (dropout := dropout[:, None, None, None])
    factors = (factors / (1 - dropout)).to(dtype)
    of_modules = (of_layer.split(dims, dim=-1) for of_layer in factors)
    return [*map(LayerMasks, positions, keep.to(dtype), of_modules, limits, ((equal, share) for share in equally))]


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
        self.batch_count, self.factor, self.pos_dim = batch_count, factor, size.pos_dim
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

    def forward(
        self, x: Tensor, lengths: Tensor, channel_mask: Tensor | None, chunks: Chunks | None, cache: StreamingCache
    ) -> Tensor:
        """Apply the stack.

        Args:
            x: (B, T, D).
            lengths: (B,) valid frames.
            channel_mask: (B, 1, D) factors before, between and after the layers; None: no factors.
            chunks: of a size that is a multiple of ``factor``; None: the whole utterance is one.
            cache: of frames before x.
        """
        factor = self.factor
        few = x if self.downsample is None else self.downsample(x, lengths)
        num_frames = few.shape[1]
        chunks = None if chunks is None else chunks.downsampled(factor)
        padding = is_padding((lengths + factor - 1) // factor, num_frames)
        hidden = cache.hidden(padding, chunks, factor)
        num_sources = cache.left_frames // factor + num_frames
        pos_emb = compact_rel_pos_encoding(num_frames, num_sources, self.pos_dim, x.device).to(x.dtype)
        pos_emb = F.dropout(pos_emb, POS_DROPOUT, self.training)
        frames = Frames(padding, added_mask(hidden, x.dtype), chunks)
        few = masked(few, channel_mask)
        layers = cast("list[ZipformerEncoderLayer]", list(self.layers))
        masks = sample_masks(layers, pos_emb, hidden) if self.training else [LayerMasks(pos_emb)] * len(layers)
        for layer, layer_masks in zip(layers, masks, strict=True):
            # again: biases have filled the masked channels
            few = masked(layer(few, frames, layer_masks, cache), channel_mask)
        if self.out_combiner is None:
            return few
        of_scale = self.batch_count.values[self.limits] if self.training else None
        return self.out_combiner(x, few.repeat_interleave(factor, dim=1)[:, : x.shape[1]], of_scale)


class ZipformerEncoder(ChunkedEncoder):
    """Stacks of layers at different frame rates, between subsampling to 50 Hz and an output at 25 Hz.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch. In training, much is
    drawn from torch's generators, and much changes with time, which `set_trained_seconds` must set. What balancing and
    whitening add to gradients also counts padded frames, as in the authors' code.

    Args:
        num_features: mel bins F of a frame, at least 7.
        encoder_dim: width of each stack; the output is as wide as the widest.
        encoder_unmasked_dim: channels of each stack that are never masked for whole utterances.
        feedforward_dim: hidden width of each stack's feed-forward modules.
        num_encoder_layers: of each stack.
        num_heads: of each stack.
        cnn_module_kernel: frames of each stack's convolutions, odd.
        downsampling_factor: frames at 50 Hz that become one in each stack.
        query_head_dim: of a head's queries and keys.
        value_head_dim: of a head's values.
        pos_head_dim: of a head's queries for positions.
        pos_dim: of an encoded distance, even.
        subsampling_channels: of the front end's three convolutions.
        dropout: final probability, below 1/3; it begins three times as large.
        causal: whether to work in chunks, and never to see beyond the end of one.
        chunk_size: frames at 50 Hz of a chunk; training draws one of them, -1 being the whole utterance; evaluation
            uses the first.
        left_context_frames: frames at 50 Hz that a chunk sees before itself, chosen in the same way; rounded down to
            whole chunks, and at least one.
        balance: whether gradients keep channels in bounds, see `Balancer`.
        whiten: whether gradients keep channels independent, see `Whiten`.
        ref_duration_s: seconds of audio that count as one batch, the unit of time of everything scheduled.

    Raises:
        ValueError: chunks do not fit the stacks, a kernel is even, or a stack lacks one of its numbers.

    Reference:
        Yao et al. 2024, "Zipformer: A faster and better encoder for automatic speech recognition", arXiv:2310.11230, in
        the form of icefall and of the package ``zipformer`` 0.1.3.
        Differs: padding is never seen, and every parameter is used. In evaluation chunks have the first size instead of
        a drawn one. A left context may be shorter than what convolutions see: they keep the past that they need.
    """

    stream_overlap = 2 * CONTEXT + FEATURE_CONTEXT

    def __init__(
        self,
        num_features: int,
        encoder_dim: Sequence[HiddenDim],
        encoder_unmasked_dim: Sequence[PositiveInt],
        feedforward_dim: Sequence[HiddenDim],
        num_encoder_layers: Sequence[PositiveInt],
        num_heads: Sequence[PositiveInt],
        cnn_module_kernel: Sequence[PositiveInt],
        downsampling_factor: Sequence[PositiveInt],
        query_head_dim: PositiveInt = 32,
        value_head_dim: PositiveInt = 12,
        pos_head_dim: PositiveInt = 4,
        pos_dim: EvenDim = 48,
        subsampling_channels: tuple[PositiveInt, PositiveInt, PositiveInt] = (8, 32, 128),
        dropout: InitialDropout = 0.1,
        causal: bool = False,
        chunk_size: Choices = (32, 16, 64, ALL),
        left_context_frames: Choices = (128, 64, 256, ALL),
        balance: bool = True,
        whiten: bool = True,
        ref_duration_s: PositiveFloat = 600.0,
    ) -> None:
        factors = OUTPUT_DOWNSAMPLING_FACTOR, *downsampling_factor
        super().__init__(ChunkSampler(causal, chunk_size, left_context_frames, factors), ref_duration_s)
        self.encoder_dim, self.encoder_unmasked_dim, self.d_model = encoder_dim, encoder_unmasked_dim, max(encoder_dim)
        falling = ScheduledFloat(self.batch_count, (0.0, 3 * dropout), (20_000.0, dropout))
        self.encoder_embed = ZipformerSubsampling(
            self.batch_count, num_features, encoder_dim[0], falling, subsampling_channels
        )
        self.encoders = nn.ModuleList()
        of_heads = query_head_dim, value_head_dim, pos_head_dim, pos_dim
        # layers come into play stack by stack
        step = WARMUP_BATCHES / (len(encoder_dim) + 1)
        of_layers = encoder_dim, feedforward_dim, num_heads, cnn_module_kernel
        of_stacks = zip(*of_layers, num_encoder_layers, downsampling_factor, encoder_unmasked_dim, strict=True)
        for i, (dim, hidden_dim, heads, kernel, num_layers, factor, _) in enumerate(of_stacks, start=1):
            layer = LayerSize(dim, hidden_dim, heads, kernel, *of_heads, causal)
            warmup = (i * step, (i + 1) * step)
            self.encoders.append(ZipformerStack(self.batch_count, layer, num_layers, factor, falling, warmup))
        self.downsample_output = SimpleDownsample(OUTPUT_DOWNSAMPLING_FACTOR)
        self._choose_stochastic(balance, whiten)

    def _choose_stochastic(self, balance: bool, whiten: bool) -> None:
        # they stay, and draw as before: dropout and skipped layers are the same with and without them
        stochastic: dict[FloatLike, None] = {PENALTY_PROBABILITY: None}
        for module in self.modules():
            if isinstance(module, Balancer):
                module.probability = module.probability if balance else 0.0
                stochastic[module.probability] = None
            elif isinstance(module, Whiten):
                module.largest_probability = module.largest_probability if whiten else 0.0
                stochastic[module.largest_probability] = None
        self.batch_count.stochastic = [*stochastic]

    @property
    def layers_to_compile(self) -> list[ZipformerEncoderLayer]:
        """What ``trainer.compile=true`` compiles, one by one."""
        return [module for module in self.modules() if isinstance(module, ZipformerEncoderLayer)]

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features at a quarter of their rate.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 9 give no encoding.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,), in 40 ms frames.
        """
        chunks = self.next_chunks(features.device)
        x, lengths = self.encoder_embed(features, num_frames)
        return self.encode(x, lengths, chunks), self.output_frames(num_frames)

    def encode(self, x: Tensor, lengths: Tensor, chunks: Chunks | None, cache: StreamingCache = WHOLE) -> Tensor:
        """Return encodings (B, ⌈T / 2⌉, D), see `ChunkedEncoder`."""
        outputs, masks = [], self._channel_masks(x)
        for stack, width, mask in zip(self.encoders, self.encoder_dim, masks, strict=True):
            # drops the last channels, or adds zeros; `int`, because a width is known when a graph is traced
            x = F.pad(x, (0, width - int(x.shape[-1])))
            x = stack(x, lengths, mask, chunks, cache)
            outputs.append(x)
        return self.downsample_output(full_dim_output(outputs), lengths)

    def begin_pass(self, device: torch.device) -> Hashable:
        """Draw what Python must know of the next pass, see `ChunkedEncoder`."""
        is_active = self.batch_count.begin_pass(device)
        self.chunks, kernels = self.sampler.draw(self.batch_count.values)
        self.has_begun = True
        return kernels, is_active

    def _channel_masks(self, x: Tensor) -> list[Tensor | None]:
        """Return factors (B, 1, D) for each stack: 0 for the upper channels of some utterances, in training.

        The channels above the unmasked ones are two halves; the upper half is masked wherever the lower is.
        """
        if not self.training:
            return [None] * len(self.encoder_dim)
        # one draw for all stacks: a bypass would bring back channels that only one of them masks
        lower, upper = ((torch.rand(x.shape[0], 1, 1, device=x.device) > MASK_PROBABILITY).to(x.dtype) for _ in "ab")
        upper = upper * lower
        masks: list[Tensor | None] = []
        for width, unmasked in zip(self.encoder_dim, self.encoder_unmasked_dim, strict=True):
            half = (width - unmasked) // 2
            parts = (torch.ones_like(lower), unmasked), (lower, half), (upper, width - unmasked - half)
            mask = torch.cat([part.expand(-1, -1, size) for part, size in parts], dim=-1)
            masks.append(mask if unmasked < width else None)
        return masks


def full_dim_output(outputs: Sequence[Tensor]) -> Tensor:
    """Return the last of the outputs (B, T, D), and channels that it lacks from the latest output that has them."""
    parts, width = [outputs[-1]], outputs[-1].shape[-1]
    for output in reversed(outputs):
        if output.shape[-1] > width:
            parts.append(output[..., width:])
            width = output.shape[-1]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else outputs[-1]
