"""Zipformer encoder: stacks at several frame rates, whole utterances and streaming."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from asr.models import devices
from asr.models.encoders.zipformer.attention import PENALTY_PROBABILITY, HeadSize
from asr.models.encoders.zipformer.layer import LayerSize, ZipformerEncoderLayer, ZipformerStack
from asr.models.encoders.zipformer.modules import ALL, OUTPUT_DOWNSAMPLING_FACTOR, Chunks, SimpleDownsample, draw_chunks
from asr.models.encoders.zipformer.scaling import Balancer, BatchCount, FloatLike, ScheduledFloat, Whiten, refilled
from asr.models.encoders.zipformer.subsampling import CONTEXT, ZipformerSubsampling, halved_frames

WARMUP_BATCHES = 4000.0
MASK_PROBABILITY = 0.125  # for each of two parts of the channels
EVERYTHING = 1 << 30  # chunks: more than any utterance has

HiddenDim = Annotated[int, Field(ge=4)]  # of which three quarters are at least one channel, and a quarter too
EvenDim = Annotated[int, Field(ge=2, multiple_of=2)]
InitialDropout = Annotated[float, Field(ge=0, lt=1 / 3)]  # it begins three times as large
Choices = Annotated[Sequence[Annotated[int, Field(ge=ALL)]], Field(min_length=1)]


class ZipformerEncoder(nn.Module):
    """Stacks of layers at different frame rates, between subsampling to 50 Hz and an output at 25 Hz.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch. In training, much is
    drawn from torch's generators, and much changes with time, which `set_batch_count` must set. What balancing and
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

    subsampling_factor = 4
    center_frames = 5.5  # of the eleven that the first two vectors at 50 Hz see, which are one at 25 Hz
    can_be_captured = True  # by CUDA graphs, in training

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
        super().__init__()
        factors = sorted({OUTPUT_DOWNSAMPLING_FACTOR, *downsampling_factor})
        for size in chunk_size if causal else ():
            if size != ALL and (size < 1 or any(size % factor for factor in factors)):
                raise ValueError(f"chunk_size must be -1, or multiples of all of {factors}, given {size}")
        self.causal, self.chunk_size, self.left_context_frames = causal, chunk_size, left_context_frames
        self.encoder_dim, self.encoder_unmasked_dim, self.d_model = encoder_dim, encoder_unmasked_dim, max(encoder_dim)
        self.ref_duration_s = ref_duration_s
        self.batch_count = BatchCount()
        self.chunks: Chunks | None = None
        self.chunk_values = torch.empty(0)  # size and left context on a GPU
        self.has_begun = False
        falling = ScheduledFloat(self.batch_count, (0.0, 3 * dropout), (20_000.0, dropout))
        self.encoder_embed = ZipformerSubsampling(
            self.batch_count, num_features, encoder_dim[0], falling, subsampling_channels
        )
        self.encoders = nn.ModuleList()
        head = HeadSize(query_head_dim, value_head_dim, pos_head_dim, pos_dim)
        # layers come into play stack by stack
        step = WARMUP_BATCHES / (len(encoder_dim) + 1)
        of_layers = encoder_dim, feedforward_dim, num_heads, cnn_module_kernel
        of_stacks = zip(*of_layers, num_encoder_layers, downsampling_factor, encoder_unmasked_dim, strict=True)
        for i, (dim, hidden_dim, heads, kernel, num_layers, factor, _) in enumerate(of_stacks, start=1):
            layer = LayerSize(dim, hidden_dim, heads, kernel, head, causal)
            warmup = (i * step, (i + 1) * step)
            self.encoders.append(ZipformerStack(self.batch_count, layer, num_layers, factor, falling, warmup))
        self.downsample_output = SimpleDownsample(OUTPUT_DOWNSAMPLING_FACTOR)
        # they stay, and draw as before: dropout and skipped layers are the same with and without them
        for module in self.modules():
            if isinstance(module, Balancer) and not balance:
                module.probability = 0.0
            elif isinstance(module, Whiten) and not whiten:
                module.largest_probability = 0.0
        self.batch_count.stochastic = list(dict.fromkeys(self._probabilities()))

    def _probabilities(self) -> Iterator[FloatLike]:
        yield PENALTY_PROBABILITY
        for module in self.modules():
            if isinstance(module, Balancer):
                yield module.probability
            elif isinstance(module, Whiten):
                yield module.largest_probability

    @property
    def layers_to_compile(self) -> list[ZipformerEncoderLayer]:
        """What ``trainer.compile=true`` compiles, one by one."""
        return [module for module in self.modules() if isinstance(module, ZipformerEncoderLayer)]

    def set_batch_count(self, audio_s: float) -> None:
        """Set how far training is, in seconds of audio so far; to be called before each update."""
        self.batch_count.set(audio_s / self.ref_duration_s)

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the numbers of encodings (B,) of utterances of ``num_frames`` (B,) frames."""
        return torch.div(halved_frames(num_frames) + 1, 2, rounding_mode="floor")

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features at a quarter of their rate.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 9 give no encoding.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,), in 40 ms frames.
        """
        if self.training and not self.has_begun:
            self.begin_pass(features.device)
        self.has_begun = False
        # nothing drawn in evaluation: results must not depend on a seed
        chunks = self.chunks if self.training else self._draw_chunks(slice(1))
        x, lengths = self.encoder_embed(features, num_frames)
        masks = self._channel_masks(x)
        outputs = []
        for stack, width, mask in zip(self.encoders, self.encoder_dim, masks, strict=True):
            x = stack(convert_num_channels(x, width), lengths, mask, chunks)
            outputs.append(x)
        return self.downsample_output(full_dim_output(outputs), lengths), self.output_frames(num_frames)

    def begin_pass(self, device: torch.device) -> Hashable:
        """Draw what Python must know of the next forward pass in training; without it that pass does so itself.

        Returns:
            The random choices: passes with equal ones launch the same kernels.
        """
        is_active = self.batch_count.begin_pass(device)
        chunks, self.has_begun = self._draw_chunks(slice(None)), True
        if chunks is None or not devices.on_accelerator(self.batch_count.values):
            self.chunks = chunks
            return chunks, is_active
        left = EVERYTHING if chunks.left_context is None else chunks.left_context
        self.chunk_values = refilled(self.chunk_values, [chunks.size, left], device)
        size, left_context = self.chunk_values.unbind()
        self.chunks = Chunks(size, left_context, chunks.smallest)
        return True, is_active

    def _draw_chunks(self, choices: slice) -> Chunks | None:
        return draw_chunks(self.chunk_size[choices], self.left_context_frames[choices]) if self.causal else None

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


def convert_num_channels(x: Tensor, num_channels: int) -> Tensor:
    """Drop the last channels of x (B, T, D), or add zeros, so that ``num_channels`` remain."""
    # `int`, because a width is known when a graph is traced
    return nn.functional.pad(x, (0, num_channels - int(x.shape[-1])))


def full_dim_output(outputs: Sequence[Tensor]) -> Tensor:
    """Return the last of the outputs (B, T, D), and channels that it lacks from the latest output that has them."""
    parts, width = [outputs[-1]], outputs[-1].shape[-1]
    for output in reversed(outputs):
        if output.shape[-1] > width:
            parts.append(output[..., width:])
            width = output.shape[-1]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else outputs[-1]


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
