"""The Zapformer: stacks of layers at several frame rates, whole utterances and streaming.

B batch, T frames, F mel bins, D width of a stack, E width between stacks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
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
from asr.models.encoders.zapformer.limiters import keep_orthogonal
from asr.models.encoders.zapformer.modules import (
    Frames,
    RmsNorm,
    ZapformerEncoderLayer,
    position_basis,
    position_freqs,
)
from asr.models.encoders.zapformer.subsampling import SWASH_L, SWASH_R, ZapformerSubsampling
from asr.models.encoders.zipformer.modules import LayerSize, added_mask, last_repeated
from asr.models.encoders.zipformer.scaling import limit_param_value
from asr.models.encoders.zipformer.schedules import ScheduledFloat, refilled
from asr.models.kernels import is_padding

PROJECTION_RMS = 0.3  # of the stored weights of projections: large ones change slowly
LIMITER_DECAY = 2000.0  # batches after which limiters count a quarter


class ZapformerStack(nn.Module):
    """Layers at a lower frame rate, between a projection and its transpose.

    Frames are joined, each ``factor`` to one. The output is the input, plus the transposed projection of a weighted sum
    of all layers' outputs minus the projected input.

    Args:
        size: of the layers.
        num_layers: at least 1.
        factor: frames that become one.
        input_dim: E, width of a frame that is not joined.
    """

    def __init__(self, size: LayerSize, num_layers: int, factor: int, input_dim: int) -> None:
        super().__init__()
        self.size, self.factor = size, factor
        joined_dim = factor * input_dim
        self.proj = nn.Linear(joined_dim, size.encoder_dim, bias=False)
        nn.init.normal_(self.proj.weight, std=PROJECTION_RMS)
        self.proj_scale = joined_dim**-0.5 / PROJECTION_RMS
        self.layers = nn.ModuleList(ZapformerEncoderLayer(size) for _ in range(num_layers))
        self.residual_scales = nn.Parameter(torch.tensor([-1.0, *[1 / num_layers] * num_layers]))
        self.input_scale = nn.Parameter(torch.ones(1))
        least = [-1.0, *[0.0] * (num_layers - 1), min(0.5, 1 / num_layers)]
        most = [-0.5, *[1.0] * num_layers]
        self.freqs = nn.Buffer(position_freqs(size.pos_dim // 2), persistent=False)
        self.scale_limits = nn.Buffer(torch.tensor([least, most]), persistent=False)

    def forward(
        self, x: Tensor, lengths: Tensor, chunks: Chunks | None, limiter_scale: Tensor | None, cache: StreamingCache
    ) -> Tensor:
        """Apply the stack.

        Args:
            x: (B, T, E), of a T that ``factor`` divides.
            lengths: (B,) valid frames.
            chunks: of a size that is a multiple of ``factor``; None: the whole utterance is one.
            limiter_scale: () of the whole stack; None: limiters add nothing to gradients.
            cache: of frames before x.
        """
        num_frames, factor = x.shape[1] // self.factor, self.factor
        padding = is_padding((lengths + factor - 1) // factor, num_frames)
        hidden = cache.hidden(padding, None if chunks is None else chunks.downsampled(factor), factor)
        if self.size.causal:
            counts = torch.arange(1, num_frames + 1, device=x.device)[None, :, None]
            if cache.num_processed is not None:
                counts = counts + cache.num_processed[:, None, None] // factor
        else:
            counts = (~padding).sum(dim=1).clamp(min=1)[:, None, None]
        basis = position_basis(num_frames, cache.left_frames // factor + num_frames, self.freqs)
        of_layer = None if limiter_scale is None else limiter_scale / len(self.layers)
        frames = Frames(basis, padding, added_mask(hidden, x.dtype), counts, of_layer)
        joined = x.reshape(x.shape[0], -1, self.factor * int(x.shape[2]))
        inner = F.linear(joined, self._projection())
        scales = limit_param_value(self.residual_scales, self.scale_limits)
        total, inner = scales[0] * inner, limit_param_value(self.input_scale, (0.5, 2.0)) * inner
        for layer, scale in zip(self.layers, scales[1:], strict=True):
            inner = layer(inner, frames, cache)
            total = total + scale * inner
        # each use has a penalty of its own
        return (joined + F.linear(total, self._projection().t())).view(x.shape)

    def _projection(self) -> Tensor:
        weight = self.proj.weight * self.proj_scale
        return keep_orthogonal(weight) if self.training else weight


class ZapformerEncoder(ChunkedEncoder):
    """Stacks of layers at different frame rates, between subsampling to 50 Hz and an output at 25 Hz.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch. What limiters add to
    gradients also counts padded frames, as in the authors' code.

    Args:
        num_features: mel bins F of a frame, at least 7.
        input_dim: E, width of the front end, of all that passes by the stacks; the output is twice as wide.
        encoder_dim: width of each stack.
        feedforward_multiple: hidden width of each stack's feed-forward modules, relative to its width.
        num_encoder_layers: of each stack.
        cnn_module_kernel: frames of each stack's convolutions, odd unless causal.
        downsampling_factor: frames at 50 Hz that become one in each stack.
        num_heads: of attention.
        query_head_dim: of a head's queries and keys.
        value_head_dim: of a head's values.
        pos_head_dim: of a head's queries for positions.
        num_freqs: of relative positions.
        subsampling_channels: of the front end's three convolutions.
        noise: in training, added after the first convolution, relative to its root mean square.
        limiter_scale: of what limiters add to gradients, relative to a loss that is summed over utterances; a quarter
            of it after 2000 batches.
        causal: whether to work in chunks, and never to see beyond the end of one.
        chunk_size: frames at 50 Hz of a chunk; training draws one of them, -1 being the whole utterance; evaluation
            uses the first.
        left_context_frames: frames at 50 Hz that a chunk sees before itself, chosen in the same way; rounded down to
            whole chunks, and at least one.
        ref_duration_s: seconds of audio that count as one batch.

    Raises:
        ValueError: chunks do not fit the stacks, a kernel is even, or a stack lacks one of its numbers.

    Reference:
        ``egs/librispeech/ASR/zapformer`` of icefall's pull request 2082, commit 7e077af0.
        Differs: `docs/models.md` has a table.
    """

    stream_overlap = FEATURE_CONTEXT
    layers_to_compile = ()  # limiters would be left out
    activations_to_compile = (SWASH_L, SWASH_R)

    def __init__(
        self,
        num_features: int,
        input_dim: PositiveInt,
        encoder_dim: Sequence[PositiveInt],
        feedforward_multiple: Sequence[PositiveInt],
        num_encoder_layers: Sequence[PositiveInt],
        cnn_module_kernel: Sequence[PositiveInt],
        downsampling_factor: Sequence[PositiveInt],
        num_heads: PositiveInt = 4,
        query_head_dim: PositiveInt = 64,
        value_head_dim: PositiveInt = 96,
        pos_head_dim: PositiveInt = 4,
        num_freqs: Annotated[int, Field(ge=2)] = 64,
        subsampling_channels: tuple[PositiveInt, PositiveInt, PositiveInt] = (16, 64, 128),
        noise: NonNegativeFloat = 0.005,
        limiter_scale: NonNegativeFloat = 0.05,
        causal: bool = False,
        chunk_size: Choices = (32, 16, 64, ALL),
        left_context_frames: Choices = (128, 64, 256, ALL),
        ref_duration_s: PositiveFloat = 600.0,
    ) -> None:
        factors = OUTPUT_DOWNSAMPLING_FACTOR, *downsampling_factor
        super().__init__(ChunkSampler(causal, chunk_size, left_context_frames, factors), ref_duration_s)
        self.multiple, self.d_model = math.lcm(*factors), OUTPUT_DOWNSAMPLING_FACTOR * input_dim
        falling = ScheduledFloat(self.batch_count, (LIMITER_DECAY, limiter_scale), (LIMITER_DECAY, limiter_scale / 4))
        self.falling, self.limiter_scale = falling, torch.empty(0)
        self.encoder_embed = ZapformerSubsampling(num_features, input_dim, subsampling_channels, noise, causal)
        self.encoders = nn.ModuleList()
        of_heads = query_head_dim, value_head_dim, pos_head_dim, 2 * num_freqs
        of_stacks = encoder_dim, feedforward_multiple, num_encoder_layers, cnn_module_kernel, downsampling_factor
        for dim, multiple, num_layers, kernel, factor in zip(*of_stacks, strict=True):
            if kernel % 2 == 0 and not causal:
                raise ValueError(f"cnn_module_kernel must be odd unless causal, given {kernel}")
            size = LayerSize(dim, multiple * dim, num_heads, kernel, *of_heads, causal)
            self.encoders.append(ZapformerStack(size, num_layers, factor, input_dim))
        self.out_norm = RmsNorm()

    @property
    def layers_to_shard(self) -> list[nn.Module]:
        """What ``trainer=fsdp`` gathers one by one."""
        return [layer for stack in self.stacks for layer in stack.layers]

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features at a quarter of their rate.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 9 give no encoding.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,), in 40 ms frames.
        """
        x, lengths = self.encoder_embed(features, num_frames)
        encodings = self.encode(x, lengths, self.next_chunks(x.device))
        return encodings[:, : (x.shape[1] + 1) // 2], self.output_frames(num_frames)

    def encode(self, x: Tensor, lengths: Tensor, chunks: Chunks | None, cache: StreamingCache = WHOLE) -> Tensor:
        """Return encodings (B, ⌈T / 2⌉ or more, 2E), see `ChunkedEncoder`."""
        # at 25 Hz and less, frames that are joined with valid ones are seen
        return self.through_stacks(last_repeated(x, lengths, self.multiple), lengths, chunks, cache)

    def through_stacks(self, x: Tensor, lengths: Tensor, chunks: Chunks | None, cache: StreamingCache) -> Tensor:
        """Return encodings (B, T / 2, 2E) of vectors (B, T, E) of the front end, of valid lengths (B,).

        What is after an utterance's end in x is seen where it is joined with valid frames. T is a multiple of all
        factors.
        """
        limiter_scale = self.limiter_scale[0] if self.training else None
        for stack in self.stacks:
            share = stack.factor / (OUTPUT_DOWNSAMPLING_FACTOR * len(self.encoders))
            x = stack(x, lengths, chunks, None if limiter_scale is None else limiter_scale * share, cache)
        return self.out_norm(x.reshape(x.shape[0], -1, self.d_model))

    def begin_pass(self, device: torch.device) -> Hashable:
        """Draw the chunks of the next pass, see `ChunkedEncoder`."""
        # a tensor, because the passes of a CUDA graph read it
        self.limiter_scale = refilled(self.limiter_scale, [float(self.falling)], device)
        self.chunks, kernels = self.sampler.draw(self.limiter_scale)
        self.has_begun = True
        return kernels
