"""Chunks of an utterance: how far frames may see, and what is kept of earlier chunks.

B batch, T frames at 50 Hz, P frames that are kept, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.models.encoders.zipformer import scaling
from asr.models.encoders.zipformer.scaling import (
    BIAS_RANGE,
    SWOOSH_L,
    SWOOSH_R,
    ActivationDropoutAndLinear,
    Balancer,
    BatchCount,
    ScheduledFloat,
    Whiten,
    limit_param_value,
    masked,
    whitening_schedule,
)
from asr.models.kernels import DepthwiseConv1d, autocast_dtype, depthwise_conv1d, is_tracing

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


OUTPUT_DOWNSAMPLING_FACTOR = 2  # from 50 Hz to 25


class FeedforwardModule(nn.Module):
    """A linear map, SwooshL, and a linear map back."""

    def __init__(self, batch_count: BatchCount, embed_dim: int, feedforward_dim: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(embed_dim, feedforward_dim)
        self.balancer = Balancer(batch_count, 0.3, 1.0, 0.75, 5.0)
        self.out_proj = ActivationDropoutAndLinear(feedforward_dim, embed_dim, SWOOSH_L, scale=0.1)
        self.out_whiten = Whiten(batch_count, whitening_schedule(batch_count, 7.5))

    def forward(self, x: Tensor, dropout: Tensor | None = None) -> Tensor:
        """Map x (B, T, D); factors (B, 1, H) of the hidden channels are those of dropout."""
        return self.out_whiten(self.out_proj(self.balancer(self.in_proj(x)), dropout))


class ChunkCausalDepthwiseConv1d(nn.Module):
    """Depthwise convolution that sees the past, and the future no further than the end of the frame's chunk.

    A causal convolution of half the width, plus one of the whole width within each chunk, whose output is multiplied by
    1 + a learned scale, because near its ends a chunk lacks neighbors.

    Reference:
        ``ChunkCausalDepthwiseConv1d`` of icefall.
        Differs: neither the end of a batch nor an utterance shorter than a chunk makes a chunk shorter.
    """

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.causal_conv = nn.Conv1d(channels, channels, (kernel_size + 1) // 2, groups=channels)
        assert self.causal_conv.bias is not None
        nn.init.uniform_(self.causal_conv.bias, -BIAS_RANGE, BIAS_RANGE)
        self.chunkwise_conv = DepthwiseConv1d(channels, kernel_size)
        self.chunkwise_conv_scale = nn.Parameter(torch.zeros(2, channels, kernel_size))

    def forward(self, x: Tensor, lengths: Tensor, chunks: Chunks | None, cache: StreamingCache) -> Tensor:
        """Convolve x (B, T, D) of valid lengths (B,) in chunks; None makes each utterance one chunk."""
        past = cache.pad(x, self.kernel_size // 2)
        past = depthwise_conv1d(past, self.causal_conv.weight, self.causal_conv.bias)  # type: ignore[arg-type]
        if chunks is None:
            return past + self.chunkwise_conv(x) * self.chunk_scale(torch.arange(x.shape[1], device=x.device), lengths)
        # a chunk ends where it would in a longer utterance: else the last one would depend on what comes later
        if isinstance(size := chunks.size, Tensor):
            frames, ends = torch.arange(x.shape[1], device=x.device), size.reshape(1)
            return past + self._convolved_by_turns(x, frames // size, chunks) * self.chunk_scale(frames % size, ends)
        # chunks become rows of the batch, so that the convolution pads each of them with zeros
        rows = F.pad(x, (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size))
        # not torch.tensor, which waits for a GPU to have copied it
        ends = torch.full((1,), size, device=x.device)
        within = self.chunkwise_conv(rows.flatten(0, 1)) * self.chunk_scale(torch.arange(size, device=x.device), ends)
        return past + within.reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]

    def _convolved_by_turns(self, x: Tensor, chunk_of: Tensor, chunks: Chunks) -> Tensor:
        """Convolve within chunks whose size is on the device, where no shape can depend on it.

        The chunks take turns. Those of one turn are so far apart that no kernel reaches from one to the next, and what
        is between them is zero.

        Args:
            x: (B, T, D).
            chunk_of: (T,) number of each frame's chunk.
            chunks: their size is a tensor.
        """
        num_turns = -(-(self.kernel_size // 2) // chunks.smallest) + 1
        turns = torch.arange(num_turns, device=x.device)[:, None, None, None]
        is_turn = chunk_of[None, None, :, None] % num_turns == turns
        alone = torch.where(is_turn, x, 0.0).flatten(0, 1)
        return self.chunkwise_conv(alone).unflatten(0, (num_turns, -1)).where(is_turn, 0.0).sum(dim=0)

    def chunk_scale(self, frames: Tensor, ends: Tensor) -> Tensor:
        """Return factors (E, T, D) for frames (T,), counted in their chunks, which end at ``ends`` (E,)."""
        # the last row is for frames that are not near an end
        left, right = F.pad(self.chunkwise_conv_scale, (0, 1)).transpose(1, 2)
        far = self.kernel_size
        place = frames + far - ends.unsqueeze(1)
        place = torch.where((place >= 0) & (place < far), place, far)
        return 1.0 + left[frames.clamp(max=far)] + right[place]


class ConvolutionModule(nn.Module):
    """A gated linear unit, a depthwise convolution, SwooshR and a linear map.

    Args:
        kernel_size: frames of the convolution, odd.
        causal: whether the convolution sees no further than the end of a chunk.
    """

    def __init__(self, batch_count: BatchCount, channels: int, kernel_size: int, causal: bool) -> None:
        super().__init__()
        self.in_proj = nn.Linear(channels, 2 * channels)
        self.balancer1 = Balancer(
            batch_count,
            ScheduledFloat(batch_count, (0.0, 0.05), (8000.0, 0.025)),
            1.0,
            1.5,
            ScheduledFloat(batch_count, (0.0, 5.0), (8000.0, 10.0)),
        )
        self.depthwise_conv: ChunkCausalDepthwiseConv1d | DepthwiseConv1d
        self.depthwise_conv = (ChunkCausalDepthwiseConv1d if causal else DepthwiseConv1d)(channels, kernel_size)
        self.balancer2 = Balancer(
            batch_count,
            ScheduledFloat(batch_count, (0.0, 0.1), (8000.0, 0.05)),
            1.0,
            ScheduledFloat(batch_count, (0.0, 0.2), (20_000.0, 0.5)),
            10.0,
        )
        self.whiten = Whiten(batch_count, whitening_schedule(batch_count, 7.5))
        self.out_proj = ActivationDropoutAndLinear(channels, channels, SWOOSH_R, scale=0.05)

    def forward(self, x: Tensor, padding: Tensor, chunks: Chunks | None, cache: StreamingCache) -> Tensor:
        """Convolve x (B, T, D); padding (B, T) true after an utterance's end; chunks None: all in one."""
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        # the convolution would carry padding into the last valid frames
        x = gated(x, self.balancer1(gate), torch.sigmoid, padding.unsqueeze(2))
        if isinstance(self.depthwise_conv, ChunkCausalDepthwiseConv1d):
            x = self.depthwise_conv(x, (~padding).sum(dim=1), chunks, cache)
        else:
            x = self.depthwise_conv(x)
        return self.out_proj(self.whiten(self.balancer2(x)))


def gated(x: Tensor, gate: Tensor, activation: Callable[[Tensor], Tensor], zero: Tensor | None = None) -> Tensor:
    """Return x ⊙ activation(gate), 0 where ``zero`` is true.

    Args:
        x: (B, …, D).
        gate: of the same shape.
        activation: `torch.sigmoid` or `torch.tanh`.
        zero: bool, broadcast to x; None: nowhere.
    """
    if is_tracing():
        return x * activation(gate) if zero is None else (x * activation(gate)).masked_fill(zero, 0.0)
    result: Tensor = _Gated.apply(x, gate, activation, zero)
    return result


class _Gated(Function):
    """`gated`: x and gate (B, …, D), and ``zero``, which broadcasts to them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor, activation: Callable[[Tensor], Tensor], zero: Tensor | None
    ) -> Tensor:
        # the activation is computed again in the backward pass: autograd would keep it beside the gate
        ctx.save_for_backward(x, gate, zero)
        ctx.activation = activation
        y = x * activation(gate)
        return y if zero is None else y.masked_fill_(zero, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, gate, zero = ctx.saved_tensors
        gradient, share = gradient if zero is None else gradient.masked_fill(zero, 0.0), ctx.activation(gate)
        aten = torch.ops.aten
        through = aten.tanh_backward if ctx.activation is torch.tanh else aten.sigmoid_backward
        return gradient * share, through(gradient * x, share), None, None


class _Mixture(Function):
    """before + (after − before) ⊙ scale of before and after (B, T, D), scale (D,) or (B, 1, D)."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, after: Tensor, scale: Tensor) -> Tensor:
        # autograd would keep both; of their difference 16 bits suffice, for only the gradient of the scale needs it
        difference = torch.sub(after, before, out=torch.empty_like(before, dtype=autocast_dtype(before)))
        ctx.save_for_backward(difference, scale)
        return torch.lerp(before, after, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        difference, scale = ctx.saved_tensors
        return gradient * (1 - scale), gradient * scale, (gradient * difference).sum_to_size(scale.shape)


class BypassModule(nn.Module):
    """before + (after − before) ⊙ scale, with a learned scale per channel.

    Early in training the scale is kept near 1, so that every module learns something.

    """

    def __init__(self, batch_count: BatchCount, embed_dim: int) -> None:
        super().__init__()
        self.bypass_scale = nn.Parameter(torch.full((embed_dim,), 0.5))
        self.scale_min = ScheduledFloat(batch_count, (0.0, 0.9), (20_000.0, 0.2))

    def forward(
        self, before: Tensor, after: Tensor, limits: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the mixture of (B, T, D) and (B, T, D).

        Args:
            before: what went into the modules in between.
            after: what came out of them.
            limits: (2,) of the scale; None: it is not limited.
            mask: (B, 1, 1), 0 for utterances that go past the modules; None: none does.
        """
        scale = masked(limit_param_value(self.bypass_scale, limits), mask).to(before.dtype)
        if is_tracing():
            return torch.lerp(before, after, scale)
        mixture: Tensor = _Mixture.apply(before, after, scale)
        return mixture


class SimpleDownsample(nn.Module):
    """Averages each ``factor`` frames in a row with learned weights; the last frame fills up its group."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        # not "bias" as in icefall: biases of zero get random values when a recognizer is built
        self.logits = nn.Parameter(torch.zeros(factor))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return ⌈T / factor⌉ frames of x (B, T, D), whose valid frames are ``lengths`` (B,)."""
        num_missing = -x.shape[1] % self.factor
        if is_tracing() or num_missing:
            x = F.pad(x, (0, 0, 0, num_missing))
        last = (lengths - 1).clamp(min=0)
        valid = torch.arange(x.shape[1], device=x.device) <= last.unsqueeze(1)
        # padding would enter the last group of a shorter utterance
        # `gather`, which other programs have, would keep all of x in the graph
        newest = (
            x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2]))
            if is_tracing()
            else x[torch.arange(len(x), device=x.device), last].unsqueeze(1)
        )
        filled = torch.where(valid.unsqueeze(2), x, newest)
        weights = self.logits.softmax(dim=0).to(x.dtype)
        # not as a matrix product, which autocast would round to 16 bits: all layers add to this sum
        groups = filled.view(x.shape[0], -1, self.factor, x.shape[2])
        if is_tracing():
            return (groups * weights.unsqueeze(1)).sum(dim=2)
        averages: Tensor = _WeightedSum.apply(groups, weights)
        return averages


class _WeightedSum(Function):
    """The sum over K of groups (B, T, K, D) times weights (K,)."""

    @staticmethod
    def forward(ctx: Any, groups: Tensor, weights: Tensor) -> Tensor:
        # 16 bits suffice for the gradient of the weights
        ctx.save_for_backward(groups.to(autocast_dtype(groups)), weights)
        return (groups * weights.unsqueeze(1)).sum(dim=2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        groups, weights = ctx.saved_tensors
        gradient = gradient.unsqueeze(2)
        return gradient * weights.unsqueeze(1), (gradient * groups).sum(dim=(0, 1, 3))


def upsample(x: Tensor, factor: int, num_frames: int) -> Tensor:
    """Repeat every frame of x (B, T, D) ``factor`` times, and return the first ``num_frames``."""
    return x.repeat_interleave(factor, dim=1)[:, :num_frames]
