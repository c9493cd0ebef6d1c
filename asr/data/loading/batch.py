"""What the data side hands to training and decoding.

B utterances, T frames, F mel bins, U tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One micro-batch of utterances.

    Attributes:
        features: (B, T, F) float32, zero where padded.
        num_frames: (B,) int64 valid frames.
        tokens: (B, U) int64, zero where padded.
        num_tokens: (B,) int64 valid tokens.
        ids: B cut ids.
        texts: B normalised transcripts.
        speakers: B names, None where unknown.
        audio_s: seconds of audio, as they were before augmentation.
        seed: what augmentation and dropout of this batch are keyed by.
        skipped: (cut id, reason) of utterances that could not be read.
    """

    features: Tensor
    num_frames: Tensor
    tokens: Tensor
    num_tokens: Tensor
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    speakers: tuple[str | None, ...]
    audio_s: float
    seed: int
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on ``device``."""
        return replace(
            self,
            features=self.features.to(device, non_blocking=True),
            num_frames=self.num_frames.to(device, non_blocking=True),
            tokens=self.tokens.to(device, non_blocking=True),
            num_tokens=self.num_tokens.to(device, non_blocking=True),
        )

    def pin_memory(self) -> Batch:
        """Return the batch with its tensors in page-locked memory."""
        return replace(
            self,
            features=self.features.pin_memory(),
            num_frames=self.num_frames.pin_memory(),
            tokens=self.tokens.pin_memory(),
            num_tokens=self.num_tokens.pin_memory(),
        )
