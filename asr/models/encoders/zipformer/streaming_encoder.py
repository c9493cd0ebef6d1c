"""A causal Zipformer, chunk by chunk.

B batch, C frames at 50 Hz of a chunk, F mel bins, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asr.models.encoders.zipformer.chunks import ALL
from asr.models.encoders.zipformer.convnext import CONTEXT
from asr.models.encoders.zipformer.encoder import ZipformerEncoder, convert_num_channels, full_dim_output
from asr.models.encoders.zipformer.stack import ZipformerStack
from asr.models.encoders.zipformer.subsampling import halved_frames

FEATURE_CONTEXT = 7  # features that a frame at 50 Hz sees besides its own two


@dataclass(frozen=True)
class StreamingState:
    """What is kept between chunks; each chunk returns a new one.

    Attributes:
        num_processed: (B,) int64 frames at 50 Hz so far.
        subsampling: (B, 3, F', C'), frames that the front end's ConvNeXt sees again.
        layers: of each layer (B, P, D) keys, what the non-linear attention attends to, values of the first attention,
            frames of the first convolution, values of the second attention, frames of the second convolution.
    """

    num_processed: Tensor
    subsampling: Tensor
    layers: tuple[tuple[Tensor, ...], ...]


class StreamingZipformer:
    """Encodes utterances chunk by chunk, with the result that the encoder gives for whole utterances.

    Args:
        encoder: causal. Its first ``chunk_size`` and its first ``left_context_frames`` must not be -1, and the second
            must be a multiple of the first. It is put into evaluation mode, and has to stay there.

    Raises:
        ValueError: the encoder is not like that.
    """

    def __init__(self, encoder: ZipformerEncoder) -> None:
        chunk, left = encoder.chunk_size[0], encoder.left_context_frames[0]
        if not encoder.causal or ALL in (chunk, left) or left < chunk or left % chunk:
            raise ValueError(
                "streaming needs causal: true, chunks of a size, and a left context of one or more of them, given "
                f"causal: {encoder.causal}, chunk_size {chunk}, left_context_frames {left}"
            )
        self.encoder = encoder.eval()
        self.stacks = [stack for stack in encoder.encoders if isinstance(stack, ZipformerStack)]
        self.chunk_size, self.left_frames = chunk, left
        self.num_features = 2 * (chunk + CONTEXT) + FEATURE_CONTEXT
        self.shift_features = 2 * chunk

    def initial_state(self, batch_size: int) -> StreamingState:
        """Return the state before the first chunk of ``batch_size`` utterances."""
        like = next(self.encoder.parameters())
        layers = [
            tuple(like.new_zeros(batch_size, *shape) for shape in shapes)
            for stack in self.stacks
            for shapes in stack.cache_shapes(self.left_frames)
        ]
        # zeros are what the ConvNeXt layer sees before a whole utterance
        front_end = like.new_zeros(batch_size, CONTEXT, *self.encoder.encoder_embed.image_shape)
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
        encoder = self.encoder
        # the last three frames are there for the ConvNeXt layer: the next chunk encodes them
        lengths = halved_frames(num_frames).clamp(max=self.chunk_size)
        x, front_end = encoder.encoder_embed.stream(features, num_frames, state.subsampling)
        outputs, past, new_past = [], list(state.layers), list[tuple[Tensor, ...]]()
        for stack, width in zip(self.stacks, encoder.encoder_dim, strict=True):
            x = convert_num_channels(x, width)
            x, layers = stack.stream(x, lengths, past[: len(stack.layers)], state.num_processed, self.left_frames)
            past = past[len(stack.layers) :]
            outputs.append(x)
            new_past.extend(layers)
        encodings = encoder.downsample_output(full_dim_output(outputs), lengths)
        new = StreamingState(state.num_processed + self.chunk_size, front_end, tuple(new_past))
        return encodings, (lengths + 1) // 2, new
