"""The Zipformer.

B batch, T frames, F mel bins, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from asr.models.encoders.zipformer.balancer import Balancer
from asr.models.encoders.zipformer.checks import check_chunks, check_stacks, check_training, check_widths
from asr.models.encoders.zipformer.chunks import ALL, Chunks, draw_chunks
from asr.models.encoders.zipformer.layer import LayerSize
from asr.models.encoders.zipformer.resample import OUTPUT_DOWNSAMPLING, Downsample
from asr.models.encoders.zipformer.schedule import Scheduled, TrainingClock
from asr.models.encoders.zipformer.stack import ZipformerStack
from asr.models.encoders.zipformer.subsampling import ZipformerSubsampling, halved_frames
from asr.models.encoders.zipformer.whiten import Whiten

WARMUP_BATCHES = 4000.0
CHANNELS_MASKED = 0.125  # probability, for each of two parts of the channels


class ZipformerEncoder(nn.Module):
    """Stacks of layers at different frame rates, between subsampling to 50 Hz and an output at 25 Hz.

    An utterance's encoding depends neither on padding nor on the other utterances of its batch. In training much is
    drawn from torch's generators, and much changes with time, which `follow_training` must tell. What balancing and
    whitening add to gradients is counted over padded frames too, as the authors do.

    Args:
        num_features: mel bins F of a frame, at least 7.
        d_model: width of each stack; the output is as wide as the widest.
        unmasked_width: channels of each stack that are never left out of whole utterances.
        d_feedforward: hidden width of each stack's feed-forward modules, at most 64 times ``d_model``.
        num_layers: of each stack.
        num_heads: of each stack, at most 32.
        kernel_width: frames of each stack's convolutions, odd, at most 1023.
        downsampling: frames at 50 Hz that become one in each stack, at most 64.
        query_width: of a head's queries and keys.
        value_width: of a head's values.
        position_query_width: of a head's queries for positions.
        position_width: of an encoded distance, even; these four at most 1024.
        subsampling_channels: of the front end's three convolutions.
        dropout: final probability, below 1/3; it begins three times as large.
        causal: whether to work in chunks, and never to see beyond the end of one.
        chunk_frames: frames at 50 Hz of a chunk; training draws one of them, -1 being the whole utterance; the first
            is used where nothing is trained.
        left_context_frames: frames at 50 Hz that a chunk sees before itself, likewise; rounded down to whole chunks,
            and at least one.
        balance: whether gradients keep channels in bounds, see `Balancer`.
        whiten: whether gradients keep channels apart, see `Whiten`.
        batch_s: seconds of audio by which training advances one batch, the unit of all that is scheduled.

    Raises:
        ValueError: an argument is out of its range.

    Reference:
        Yao et al. 2024, "Zipformer: A faster and better encoder for automatic speech recognition", arXiv:2310.11230, in
        the form of icefall and of the package ``zipformer`` 0.1.3.
        Differs: padding is never seen, and no parameter is unused. Where nothing is trained, chunks have the first size
        instead of a drawn one. A left context may be shorter than what convolutions see: they keep a past of their own.
    """

    subsampling_factor = 4

    def __init__(
        self,
        num_features: int,
        d_model: Sequence[int],
        unmasked_width: Sequence[int],
        d_feedforward: Sequence[int],
        num_layers: Sequence[int],
        num_heads: Sequence[int],
        kernel_width: Sequence[int],
        downsampling: Sequence[int],
        query_width: int = 32,
        value_width: int = 12,
        position_query_width: int = 4,
        position_width: int = 48,
        subsampling_channels: Sequence[int] = (8, 32, 128),
        dropout: float = 0.1,
        causal: bool = False,
        chunk_frames: Sequence[int] = (32, 16, 64, ALL),
        left_context_frames: Sequence[int] = (128, 64, 256, ALL),
        balance: bool = True,
        whiten: bool = True,
        batch_s: float = 600.0,
    ) -> None:
        super().__init__()
        stacks = {
            "d_model": d_model,
            "unmasked_width": unmasked_width,
            "d_feedforward": d_feedforward,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "kernel_width": kernel_width,
            "downsampling": downsampling,
        }
        widths = {
            "query_width": query_width,
            "value_width": value_width,
            "position_query_width": position_query_width,
            "position_width": position_width,
        }
        check_stacks(stacks)
        check_widths(num_features, widths, subsampling_channels)
        check_training(dropout, batch_s)
        if causal:
            check_chunks(chunk_frames, left_context_frames, downsampling)
        self.clock = TrainingClock()
        self.widths, self.unmasked_width, self.d_model = d_model, unmasked_width, max(d_model)
        self.causal, self.chunk_frames, self.left_context_frames = causal, chunk_frames, left_context_frames
        self.batch_s = batch_s
        falling = Scheduled(self.clock, (0.0, 3 * dropout), (20_000.0, dropout))
        self.subsampling = ZipformerSubsampling(self.clock, num_features, d_model[0], falling, subsampling_channels)
        each = [dict(zip(stacks, numbers, strict=True)) for numbers in zip(*stacks.values(), strict=True)]
        self.stacks = nn.ModuleList(self._stack(i, numbers, widths, falling) for i, numbers in enumerate(each))
        self.downsample = Downsample(OUTPUT_DOWNSAMPLING)
        self._switch(balance, whiten)

    def _stack(
        self, index: int, numbers: Mapping[str, int], widths: Mapping[str, int], dropout: Scheduled
    ) -> ZipformerStack:
        """Return a stack, whose layers come into play behind those of the stacks before."""
        of_layer = ("d_model", "d_feedforward", "num_heads", "kernel_width")
        size = LayerSize(**{name: numbers[name] for name in of_layer}, **widths, causal=self.causal)
        step = WARMUP_BATCHES / (len(self.widths) + 1)
        times = ((index + 1) * step, (index + 2) * step)
        return ZipformerStack(self.clock, size, numbers["num_layers"], numbers["downsampling"], dropout, times)

    def _switch(self, balance: bool, whiten: bool) -> None:
        for module in self.modules():
            if isinstance(module, Balancer) and not balance:
                module.probability = 0.0
            elif isinstance(module, Whiten) and not whiten:
                module.largest_probability = 0.0

    def follow_training(self, audio_s: float) -> None:
        """Take in how many seconds of audio have been trained on; to be called before each update."""
        self.clock.set(audio_s / self.batch_s)

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the number of encodings of utterances of ``num_frames`` frames."""
        return torch.div(halved_frames(num_frames) + 1, 2, rounding_mode="floor")

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features at a quarter of their rate.

        Args:
            features: (B, T, F); padding may hold any finite value.
            num_frames: (B,) int64 valid frames; fewer than 9 leave no encoding.

        Returns:
            Encodings (B, T', D), unspecified where padded, and their valid lengths (B,), in 40 ms frames.
        """
        x, lengths = self.subsampling(features, num_frames)
        masks = self._channel_masks(x)
        chunks, outputs = self._chunks(), []
        for stack, width, mask in zip(self.stacks, self.widths, masks, strict=True):
            x = stack(as_wide(x, width), lengths, mask, chunks)
            outputs.append(x)
        return self.downsample(widest(outputs), lengths), self.output_frames(num_frames)

    def _chunks(self) -> Chunks | None:
        if not self.causal:
            return None
        if self.training:
            return draw_chunks(self.chunk_frames, self.left_context_frames)
        return draw_chunks(self.chunk_frames[:1], self.left_context_frames[:1])

    def _channel_masks(self, x: Tensor) -> list[Tensor | None]:
        """Return factors (B, 1, D) for each stack: 0 for the upper channels of some utterances, in training.

        The channels above the unmasked ones are two halves; the upper goes wherever the lower does.
        """
        if not self.training:
            return [None] * len(self.widths)
        lower, upper = ((torch.rand(x.shape[0], 1, 1, device=x.device) > CHANNELS_MASKED).to(x.dtype) for _ in "ab")
        upper = upper * lower
        masks: list[Tensor | None] = []
        for width, unmasked in zip(self.widths, self.unmasked_width, strict=True):
            half = (width - unmasked) // 2
            parts = (torch.ones_like(lower), unmasked), (lower, half), (upper, width - unmasked - half)
            mask = torch.cat([part.expand(-1, -1, size) for part, size in parts], dim=-1)
            masks.append(mask if unmasked < width else None)
        return masks


def as_wide(x: Tensor, width: int) -> Tensor:
    """Leave channels of x (B, T, D) out, or add zeros, so that there are ``width``."""
    return nn.functional.pad(x, (0, width - x.shape[-1]))


def widest(outputs: Sequence[Tensor]) -> Tensor:
    """Return the last output with the channels that it lacks, each from the latest output that has it."""
    pieces, width = [outputs[-1]], outputs[-1].shape[-1]
    for output in reversed(outputs):
        if output.shape[-1] > width:
            pieces.append(output[..., width:])
            width = output.shape[-1]
    return torch.cat(pieces, dim=-1) if len(pieces) > 1 else outputs[-1]
