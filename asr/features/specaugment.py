"""SpecAugment: masks of time and frequency, drawn alone or kept apart.

B batch, T frames, F mel bins, N masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from asr.models.kernels import is_padding
from asr.ranges import Fraction

MIN_FREE = 0.2  # of a length, between spans that are masked alternately


def _masks(lengths: Tensor, num_masks: int, max_width: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw N intervals per utterance inside its length; return (B, size), true where masked."""
    # only the numbers that are drawn go to a GPU: the lengths would have to be waited for
    shape, device = (len(lengths), num_masks), lengths.device
    for_width, for_start = (torch.rand(shape, generator=generator).to(device, non_blocking=True) for _ in range(2))
    width = (for_width * (max_width.unsqueeze(1) + 1)).floor()
    start = (for_start * (lengths.unsqueeze(1) - width + 1)).floor()
    at = torch.arange(size, device=device).view(1, 1, -1)
    inside = (at >= start.unsqueeze(2)) & (at < (start + width).unsqueeze(2))
    return inside.any(dim=1)


@dataclass
class SpecAugment:
    """Sets random stretches of time and bands of frequency to the mean of the utterance's features.

    Masks are drawn on the CPU from a given generator, so they depend neither on the device nor on what ran before.

    Attributes:
        num_time_masks: stretches per utterance.
        max_time_frames: longest stretch, in frames.
        max_time_fraction: longest stretch as a fraction of the utterance; the smaller of the two holds.
        num_feature_masks: bands per utterance.
        max_feature_bins: widest band, in mel bins.

    Reference:
        Park et al. 2019, "SpecAugment", arXiv:1904.08779, section 2.
        Differs: no time warping; every utterance of a batch has masks of its own.
    """

    num_time_masks: NonNegativeInt = 2
    max_time_frames: NonNegativeInt = 30
    max_time_fraction: Fraction = 0.15
    num_feature_masks: NonNegativeInt = 2
    max_feature_bins: NonNegativeInt = 15

    def __post_init__(self) -> None:
        self.needs = "spectrum" if self.num_feature_masks else None

    def __call__(self, features: Tensor, num_frames: Tensor, generator: torch.Generator) -> Tensor:
        """Return masked features.

        Args:
            features: (B, T, F); padding may hold anything.
            num_frames: (B,) valid frames.
            generator: a CPU generator; its state alone decides the masks.
        """
        lengths = num_frames.float()
        longest = (lengths * self.max_time_fraction).floor().clamp(max=self.max_time_frames)
        frames, bins = features.shape[1:]
        in_time = _masks(lengths, self.num_time_masks, longest, frames, generator)
        full = torch.full_like(lengths, float(bins))
        widest = torch.full_like(lengths, float(min(self.max_feature_bins, bins)))
        in_frequency = _masks(full, self.num_feature_masks, widest, bins, generator)
        mask = in_time.unsqueeze(2) | in_frequency.unsqueeze(1)
        return torch.where(mask, _means(features, num_frames), features)


def _means(features: Tensor, num_frames: Tensor) -> Tensor:
    """Return the means (B, 1, 1) of utterances (B, T, F) of lengths (B,)."""
    padding = is_padding(num_frames, features.shape[1]).unsqueeze(2)
    # as in lhotse, since features need not be normalized: zero may be the loudest value of a spectrum
    total = features.masked_fill(padding, 0.0).sum(dim=(1, 2), dtype=torch.float64)
    mean = total / (num_frames * features.shape[2]).clamp(min=1)
    return mean.to(features.dtype).view(-1, 1, 1)


def warped(features: Tensor, lengths: Tensor, center: Tensor, moved: Tensor) -> Tensor:
    """Stretch what is before a frame of an utterance, and shrink what is after it, or the other way round.

    Args:
        features: (B, T, F).
        lengths: (B,) valid frames; later ones stay.
        center: (B,) the first frame of the second part.
        moved: (B,) where it is afterwards.
    """
    lengths, center, moved = (x.unsqueeze(1) for x in (lengths, center, moved))
    t = torch.arange(features.shape[1], device=features.device).unsqueeze(0)
    is_first = t < moved
    begin, end = torch.where(is_first, 0, center), torch.where(is_first, center, lengths)
    new_begin, new_end = torch.where(is_first, 0, moved), torch.where(is_first, moved, lengths)
    stretch = (end - begin) / (new_end - new_begin).clamp(min=1)
    place = (t - new_begin + 0.5) * stretch - 0.5
    nearest = place.floor()
    x = (place - nearest).unsqueeze(2)
    # cubic convolution with a = −0.75, as torch's bicubic interpolation
    weights = (
        *(-0.75 * x * (1 - x) ** 2, (1.25 * x - 2.25) * x * x + 1, (1.25 * (1 - x) - 2.25) * (1 - x) ** 2 + 1),
        -0.75 * (1 - x) * x * x,
    )
    total = torch.zeros_like(features)
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        source = (
            torch.minimum(torch.maximum(begin + nearest + offset, begin), end - 1)
            .clamp(0, features.shape[1] - 1)
            .long()
        )
        total = total + features.gather(1, source.unsqueeze(2).expand_as(features)) * weight.to(features.dtype)
    return torch.where((t < lengths).unsqueeze(2), total, features)


def alternating_masks(
    lengths: Tensor, num_masks: Tensor, max_fraction: float, size: int, drawn: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Lay twice as many spans as needed side by side, with gaps, and mask every other one.

    Args:
        lengths: (B,) of what is masked.
        num_masks: (B,) at most N.
        max_fraction: of the length that masks may cover; they cover half of it on average.
        size: of the padded length.
        drawn: numbers from 0 to 1 (B, 2N) for the sizes of spans, (B, 2N) for those of gaps; (B,) 0 or 1, the first of
            the spans that are masked.

    Returns:
        (B, ``size``), true where masked.
    """
    for_spans, for_gaps, first = drawn
    num, num_spans = num_masks.unsqueeze(1), for_spans.shape[1]
    exists = torch.arange(num_spans, device=lengths.device) < 2 * num
    spans = torch.where(exists, for_spans * (max_fraction / num), 0.0)
    free = (1 - spans.sum(dim=1, keepdim=True)).clamp(min=MIN_FREE)
    edges = torch.where(exists, for_gaps, 1.0).sort(dim=1)[0] * free
    gaps = torch.cat((torch.zeros_like(free), edges, free), dim=1).diff(dim=1)
    alternating = torch.cat((torch.stack((gaps[:, :-1], spans), dim=2).flatten(1), gaps[:, -1:]), dim=1)
    places = (alternating / alternating.sum(dim=1, keepdim=True) * lengths.unsqueeze(1)).cumsum(dim=1).floor()
    chosen = first.unsqueeze(1) + torch.arange(0, num_spans, 2, device=lengths.device)
    start, end = (places[:, :-1][:, side::2].gather(1, chosen).unsqueeze(2) for side in (0, 1))
    at = torch.arange(size, device=lengths.device)
    return ((at >= start) & (at < end)).any(dim=1)


@dataclass
class AlternatingSpecAugment:
    """Warps time, and sets stretches of time and bands of frequency, with gaps between them, to the utterance's mean.

    All is drawn on the CPU from a given generator, so it depends neither on the device nor on what ran before.

    Attributes:
        max_frame_mask_fraction: of an utterance's frames that masks may cover; they cover half of it on average.
        max_frame_mask_frames: about the longest stretch: longer utterances have more stretches.
        max_feature_mask_fraction: of the mel bins that masks may cover.
        num_feature_masks: bands per utterance.
        probability: that an utterance is masked.
        time_warp_probability: that a random frame of an utterance is moved.
        time_warp_frames: how far it is moved at most; 0: time is not warped. It must not be with ``head=cr_ctc``, which
            compares frames of views.

    Reference:
        ``AlternatingSpecAugment`` of icefall's Zapformer; Park et al. 2019, "SpecAugment", arXiv:1904.08779.
        Differs: padding counts for nothing, where theirs masks it and fills in the mean of the batch; masks are the
        union of their spans, where theirs loses some that touch.
    """

    max_frame_mask_fraction: Fraction = 0.725
    max_frame_mask_frames: PositiveInt = 70
    max_feature_mask_fraction: Fraction = 0.675
    num_feature_masks: NonNegativeInt = 2
    probability: Fraction = 0.9
    time_warp_probability: Fraction = 0.9
    time_warp_frames: NonNegativeInt = 80

    def __post_init__(self) -> None:
        self.needs = "spectrum" if self.num_feature_masks else None

    def __call__(self, features: Tensor, num_frames: Tensor, generator: torch.Generator) -> Tensor:
        """Return warped and masked features.

        Args:
            features: (B, T, F); padding may hold anything.
            num_frames: (B,) valid frames.
            generator: a CPU generator; its state alone decides what happens.
        """
        size, frames, bins = features.shape

        def draw(*shape: int) -> Tensor:
            # only the numbers that are drawn go to a GPU: the lengths would have to be waited for
            return torch.rand(shape, generator=generator).to(features.device, non_blocking=True)

        for_warp, is_masked = draw(3, size), draw(size, 1, 1) < self.probability
        if self.time_warp_frames:
            features = warped(features, num_frames, *self._moves(num_frames, for_warp))
        mask = torch.zeros(size, frames, bins, dtype=torch.bool, device=features.device)
        lengths, share = num_frames.float(), self.max_frame_mask_fraction / self.max_frame_mask_frames
        if self.max_frame_mask_fraction:
            most = max(1, round(frames * share))
            drawn = draw(size, 2 * most), draw(size, 2 * most), (2 * draw(size)).long()
            num = (lengths * share).round().clamp(min=1)
            mask |= alternating_masks(lengths, num, self.max_frame_mask_fraction, frames, drawn).unsqueeze(2)
        if self.num_feature_masks:
            num_bands = 2 * self.num_feature_masks
            drawn = draw(size, num_bands), draw(size, num_bands), (2 * draw(size)).long()
            whole, num = torch.full_like(lengths, bins), torch.full_like(lengths, self.num_feature_masks)
            mask |= alternating_masks(whole, num, self.max_feature_mask_fraction, bins, drawn).unsqueeze(1)
        return torch.where(mask & is_masked, _means(features, num_frames), features)

    def _moves(self, num_frames: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B,) frames that are moved, and (B,) where to; equal where nothing moves."""
        most = self.time_warp_frames
        num_places = num_frames - 2 * most - 1
        center = most + 1 + (drawn[0] * num_places.clamp(min=0)).long()
        moved = center - most + (drawn[1] * (2 * most + 1)).long()
        moves = (drawn[2] < self.time_warp_probability) & (num_places > 0)
        return center, torch.where(moves, moved, center)
