"""SpecAugment: masks of time and frequency.

B batch, T frames, F mel bins, N masks.
"""

from __future__ import annotations

import torch
from torch import Tensor


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


class SpecAugment:
    """Sets random stretches of time and bands of frequency to the mean of the utterance's features.

    Masks are drawn on the CPU from a given generator, so they depend neither on the device nor on what ran before.

    Args:
        num_time_masks: stretches per utterance.
        max_time_frames: longest stretch, in frames.
        max_time_fraction: longest stretch as a fraction of the utterance; the smaller of the two holds.
        num_feature_masks: bands per utterance.
        max_feature_bins: widest band, in mel bins.

    Reference:
        Park et al. 2019, "SpecAugment", arXiv:1904.08779, section 2.
        Differs: no time warping; every utterance of a batch has masks of its own.
    """

    def __init__(
        self,
        num_time_masks: int = 2,
        max_time_frames: int = 30,
        max_time_fraction: float = 0.15,
        num_feature_masks: int = 2,
        max_feature_bins: int = 15,
    ) -> None:
        self.num_time_masks, self.max_time_frames = num_time_masks, max_time_frames
        self.max_time_fraction = max_time_fraction
        self.num_feature_masks, self.max_feature_bins = num_feature_masks, max_feature_bins
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"{name} must be at least 0, given {value}")
        if max_time_fraction > 1:
            raise ValueError(f"max_time_fraction must be in [0, 1], given {max_time_fraction}")
        self.needs = "spectrum" if num_feature_masks else None

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
        padding = torch.arange(frames, device=features.device) >= num_frames.unsqueeze(1)
        # as in lhotse, since features need not be normalized: zero may be the loudest value of a spectrum
        total = features.masked_fill(padding.unsqueeze(2), 0.0).sum(dim=(1, 2), dtype=torch.float64)
        mean = total / (num_frames * bins).clamp(min=1)
        return torch.where(mask, mean.to(features.dtype).view(-1, 1, 1), features)
