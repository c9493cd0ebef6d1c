"""Encoders that work in chunks: how utterances are divided, what a chunk sees of earlier ones, and streams.

B batch, T frames, F mel bins, D width, C frames of a chunk at 50 Hz, P frames that are kept, S = P + T.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from asr.models import devices
from asr.models.encoders.zipformer import schedules
from asr.models.encoders.zipformer.subsampling import halved_frames

ALL = -1
EVERYTHING = 1 << 30  # chunks: more than any utterance has
OUTPUT_DOWNSAMPLING_FACTOR = 2  # from 50 Hz to 25
FEATURE_CONTEXT = 7  # features that a frame at 50 Hz sees besides its own two

Choices = Annotated[Sequence[Annotated[int, Field(ge=ALL)]], Field(min_length=1)]


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


def _drawn(choices: Sequence[int]) -> int:
    # without a choice nothing is drawn: the generator stays as it is
    return choices[int(schedules.draw() * len(choices))] if len(choices) > 1 else choices[0]


class ChunkSampler:
    """The chunks of an encoder: training draws them for each pass, evaluation has the first ones.

    Args:
        causal: whether there are chunks.
        chunk_size: sizes to draw from, in frames; -1 is the whole utterance.
        left_context_frames: numbers to draw from; -1 is everything; at least one chunk is always seen.
        factors: by which the frame rate is divided; each must divide all chunks.

    Raises:
        ValueError: a chunk has another size.
    """

    def __init__(
        self, causal: bool, chunk_size: Sequence[int], left_context_frames: Sequence[int], factors: Iterable[int]
    ) -> None:
        factors = sorted(set(factors))
        for size in chunk_size if causal else ():
            if size != ALL and (size < 1 or any(size % factor for factor in factors)):
                raise ValueError(f"chunk_size must be -1, or multiples of all of {factors}, given {size}")
        self.causal, self.chunk_size, self.left_context_frames = causal, chunk_size, left_context_frames
        self.on_device = torch.empty(0)  # size and left context on a GPU

    def first(self) -> Chunks | None:
        """Return the first choices: nothing is drawn in evaluation, whose results must not depend on a seed."""
        return self._chosen(itemgetter(0))

    def draw(self, like: Tensor) -> tuple[Chunks | None, Hashable]:
        """Draw the chunks of a pass on the device of a tensor.

        Returns:
            The chunks, and what the kernels that the pass launches depend on: of chunks on a GPU, only whether there
            are any.
        """
        chunks = self._chosen(_drawn)
        if chunks is None or not devices.on_accelerator(like):
            return chunks, chunks
        left = EVERYTHING if chunks.left_context is None else chunks.left_context
        self.on_device = schedules.refilled(self.on_device, [chunks.size, left], like.device)
        size, left_context = self.on_device.unbind()
        return Chunks(size, left_context, chunks.smallest), True

    def _chosen(self, choose: Callable[[Sequence[int]], int]) -> Chunks | None:
        """Return the chunks of a size and a left context; None: the whole utterance is one chunk."""
        if not self.causal or (size := choose(self.chunk_size)) == ALL:
            return None
        left = choose(self.left_context_frames)
        smallest = min(size for size in self.chunk_size if size != ALL)
        return Chunks(size, None if left == ALL else max(1, left // size), smallest)


class StreamingCache:
    """Keeps frames of earlier chunks for the modules of an encoder, in the order in which they ask for them.

    Args:
        past: (B, P, D) of each module, with its own P and D; None: there are no chunks, but the whole utterance.
        num_processed: (B,) frames at 50 Hz so far.
        left_frames: how many of them attention sees.
    """

    def __init__(
        self, past: Sequence[Tensor] | None = None, num_processed: Tensor | None = None, left_frames: int = 0
    ) -> None:
        self.past, self.num_processed, self.left_frames = past, num_processed, left_frames
        self.kept: list[Tensor] = []

    def extend(self, x: Tensor) -> Tensor:
        """Return x (B, T, D) after the kept frames, (B, P + T, D), and keep the last P of them; a whole x as it is."""
        if self.past is None:
            return x
        # modules ask in the same order in every chunk, so that their number in this one tells whose past it is
        extended = torch.cat((self.past[len(self.kept)], x), dim=1)
        self.kept.append(extended[:, x.shape[1] :])
        return extended

    def cumsum(self, x: Tensor) -> Tensor:
        """Return the sums (B, T, D) of the frames of x (B, T, D) up to each of them, and keep the last."""
        sums = x.cumsum(dim=1)
        if self.past is None:
            return sums
        sums = sums + self.past[len(self.kept)]
        self.kept.append(sums[:, -1:])
        return sums

    def pad(self, x: Tensor, num_frames: int) -> Tensor:
        """Return x (B, T, D) after ``num_frames`` frames: those that are kept, or zeros before a whole x."""
        if self.past is None:
            return F.pad(x, (0, 0, num_frames, 0))
        extended = self.extend(x)
        assert extended.shape[1] == x.shape[1] + num_frames
        return extended

    def hidden(self, padding: Tensor, chunks: Chunks | None, factor: int) -> Tensor:
        """Return (B, 1, T or 1, S), true where a frame must not attend to.

        Args:
            padding: (B, T) of the utterance or the chunk.
            chunks: that hide frames of a whole utterance.
            factor: frames at 50 Hz that are one here.
        """
        if self.num_processed is None:
            whole = padding[:, None, None, :]
            return whole if chunks is None else whole | chunks.hidden(padding.shape[1], padding.device)
        num_left, num_processed = self.left_frames // factor, self.num_processed // factor
        # at first the cache holds zeros, which are no frames
        missing = torch.arange(num_left, device=padding.device) < (num_left - num_processed).unsqueeze(1)
        return torch.cat((missing, padding), dim=1)[:, None, None, :]


WHOLE = StreamingCache()


@dataclass(frozen=True)
class StreamingState:
    """State of a stream between two chunks; each chunk returns a new one.

    Attributes:
        num_processed: (B,) int64 frames at 50 Hz so far.
        subsampling: (B, P, F', C'), frames that the front end's ConvNeXt sees again.
        layers: what their modules keep (B, P, D), layer by layer, in the order in which they ask for it.
    """

    num_processed: Tensor
    subsampling: Tensor
    layers: tuple[Tensor, ...]


class ChunkedEncoder(nn.Module):
    """What a Zipformer and a Zapformer share: frame rates, how far training is, and chunks.

    Args:
        sampler: of the chunks.
        ref_duration_s: seconds of audio that count as one batch.

    Attributes:
        stream_overlap: features of a chunk that the next one sees again.
    """

    subsampling_factor = 4
    center_frames = 5.5  # of the eleven that the first two vectors at 50 Hz see, which are one at 25 Hz
    supports_cuda_graphs = True  # by CUDA graphs, in training
    stream_overlap: int
    encoder_embed: Any
    encoders: nn.ModuleList

    def __init__(self, sampler: ChunkSampler, ref_duration_s: float) -> None:
        super().__init__()
        self.sampler, self.ref_duration_s = sampler, ref_duration_s
        self.batch_count = schedules.BatchCount()
        self.chunks: Chunks | None = None
        self.has_begun = False

    @property
    def stacks(self) -> list[Any]:
        """The stacks of layers, in order."""
        return [*self.encoders]

    def set_trained_seconds(self, audio_s: float) -> None:
        """Set how far training is, in seconds of audio so far; to be called before each update."""
        self.batch_count.set(audio_s / self.ref_duration_s)

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the numbers of encodings (B,) of utterances of ``num_frames`` (B,) frames."""
        return torch.div(halved_frames(num_frames) + 1, 2, rounding_mode="floor")

    def begin_pass(self, device: torch.device) -> Hashable:
        """Draw what Python must know of the next forward pass in training; without it that pass does so itself.

        Returns:
            The random choices: passes with equal ones launch the same kernels.
        """
        raise NotImplementedError

    def next_chunks(self, device: torch.device) -> Chunks | None:
        """Return the chunks of a forward pass that begins."""
        if self.training and not self.has_begun:
            self.begin_pass(device)
        self.has_begun = False
        # nothing drawn in evaluation: results must not depend on a seed
        return self.chunks if self.training else self.sampler.first()

    def encode(self, x: Tensor, lengths: Tensor, chunks: Chunks | None, cache: StreamingCache) -> Tensor:
        """Return encodings (B, ⌈T / 2⌉ or more, D) of the front end's vectors (B, T, E), of valid lengths (B,)."""
        raise NotImplementedError


class StreamingEncoder:
    """Encodes utterances chunk by chunk, with the result that the encoder gives for whole utterances.

    Args:
        encoder: causal. Its first ``chunk_size`` and its first ``left_context_frames`` must not be -1, and the second
            must be a multiple of the first. It is put into evaluation mode, and has to stay there.

    Attributes:
        layer_shapes: (P, D) of what each layer's modules keep.

    Raises:
        ValueError: the encoder is not like that.
    """

    def __init__(self, encoder: ChunkedEncoder) -> None:
        sampler = encoder.sampler
        chunk, left = sampler.chunk_size[0], sampler.left_context_frames[0]
        if not sampler.causal or ALL in (chunk, left) or left < chunk or left % chunk:
            raise ValueError(
                "streaming needs causal: true, chunks of a size, and a left context of one or more of them, given "
                f"causal: {sampler.causal}, chunk_size {chunk}, left_context_frames {left}"
            )
        self.encoder = encoder.eval()
        self.chunk_size, self.left_frames = chunk, left
        self.num_features = 2 * chunk + encoder.stream_overlap
        self.shift_features = 2 * chunk
        self.layer_shapes: list[Sequence[tuple[int, int]]] = [
            layer.cache_shapes(left // stack.factor) for stack in encoder.stacks for layer in stack.layers
        ]

    def initial_state(self, batch_size: int) -> StreamingState:
        """Return the state before the first chunk of ``batch_size`` utterances."""
        like = next(self.encoder.parameters())
        layers = tuple(like.new_zeros(batch_size, *shape) for shapes in self.layer_shapes for shape in shapes)
        # zeros are what the ConvNeXt layer sees before a whole utterance
        front_end = like.new_zeros(batch_size, *self.encoder.encoder_embed.past_shape)
        return StreamingState(torch.zeros(batch_size, dtype=torch.int64, device=like.device), front_end, layers)

    @torch.no_grad()
    def __call__(
        self, features: Tensor, num_frames: Tensor, state: StreamingState
    ) -> tuple[Tensor, Tensor, StreamingState]:
        """Encode a chunk.

        Args:
            features: (B, ``num_features``, F), of which the next chunk begins ``shift_features`` later.
            num_frames: (B,) int64 valid features; fewer than all if the utterance ends.
            state: from the chunk before.

        Returns:
            Encodings (B, C / 2, D), their valid lengths (B,), and the state for the next chunk.
        """
        # a front end may see frames ahead: the next chunk encodes them
        lengths = halved_frames(num_frames).clamp(max=self.chunk_size)
        x, front_end = self.encoder.encoder_embed.stream(features, num_frames, state.subsampling)
        cache = StreamingCache(state.layers, state.num_processed, self.left_frames)
        encodings = self.encoder.encode(x, lengths, Chunks(self.chunk_size, None, self.chunk_size), cache)
        new = StreamingState(state.num_processed + self.chunk_size, front_end, tuple(cache.kept))
        return encodings, (lengths + 1) // 2, new
