"""Encodes utterances chunk by chunk.

B batch, T frames, F mel bins, D width, C frames of a chunk at 50 Hz, P frames that are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from asr.models.encoders.zipformer.modules import ALL, ChunkSampler


@dataclass(frozen=True)
class StreamingState:
    """State of a stream between two chunks; each chunk returns a new one.

    Attributes:
        num_processed: (B,) int64 frames at 50 Hz so far.
        subsampling: (B, P, F', C'), frames that the front end's ConvNeXt sees again.
        layers: of each layer, what its modules keep (B, P, D), in the order in which they ask for it.
    """

    num_processed: Tensor
    subsampling: Tensor
    layers: tuple[tuple[Tensor, ...], ...]


@runtime_checkable
class SupportsStreaming(Protocol):
    """A causal encoder at 50 Hz that returns 25 encodings per second, also chunk by chunk.

    Attributes:
        sampler: its chunks.
        stream_overlap: features of a chunk that the next one sees again.
    """

    sampler: ChunkSampler
    stream_overlap: int

    def cache_shapes(self, left_frames: int) -> tuple[tuple[int, ...], list[tuple[tuple[int, int], ...]]]:
        """Return the shapes, without the batch, of `StreamingState`: of the front end, and of each layer's modules."""

    def stream(
        self, features: Tensor, num_frames: Tensor, state: StreamingState
    ) -> tuple[Tensor, Tensor, StreamingState]:
        """Encode a chunk, see `StreamingEncoder`."""


class StreamingEncoder:
    """Encodes utterances chunk by chunk, with the result that the encoder gives for whole utterances.

    Args:
        encoder: causal. Its first ``chunk_size`` and its first ``left_context_frames`` must not be -1, and the second
            must be a multiple of the first. It is put into evaluation mode, and has to stay there.

    Raises:
        ValueError: the encoder is not like that.
    """

    def __init__(self, encoder: Any) -> None:
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

    def initial_state(self, batch_size: int) -> StreamingState:
        """Return the state before the first chunk of ``batch_size`` utterances."""
        like = next(self.encoder.parameters())
        of_front_end, of_layers = self.encoder.cache_shapes(self.left_frames)
        layers = [tuple(like.new_zeros(batch_size, *shape) for shape in shapes) for shapes in of_layers]
        # zeros are what the ConvNeXt layer sees before a whole utterance
        front_end = like.new_zeros(batch_size, *of_front_end)
        return StreamingState(torch.zeros(batch_size, dtype=torch.int64, device=like.device), front_end, tuple(layers))

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
        return self.encoder.stream(features, num_frames, state)
