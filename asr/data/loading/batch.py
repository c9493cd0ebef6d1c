"""The batch that the data side gives to training and decoding.

B utterances, T frames, F mel bins, U tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
        texts: B normalized transcripts.
        speakers: B names, None where unknown.
        audio_s: seconds of audio before augmentation.
        seed: of augmentation and dropout of this batch.
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
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Return the batch with its tensors in page-locked memory; DataLoader calls this by name."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **changed)
