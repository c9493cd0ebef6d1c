"""The recogniser: features → normalisation → augmentation → encoder → head.

B batch, T frames, F mel bins, U tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from asr.features.normalise import GlobalNorm


class Augment(Protocol):
    """Changes features in training; the same generator state gives the same change."""

    def __call__(self, features: Tensor, num_frames: Tensor, generator: torch.Generator) -> Tensor:
        """Return changed features (B, T, F)."""


class Recogniser(nn.Module):
    """Joins the parts that every recipe chooses; holds no logic of its own beyond their order.

    Args:
        encoder: features and lengths → encodings and lengths.
        head: encodings → log-probabilities and losses.
        normalise: fixed statistics of the training features.
        augment: applied in training only, or None.
    """

    def __init__(
        self, encoder: nn.Module, head: nn.Module, normalise: GlobalNorm, augment: Augment | None = None
    ) -> None:
        super().__init__()
        self.normalise, self.encoder, self.head = normalise, encoder, head
        self.augment = augment

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T', V) and valid lengths (B,) of features (B, T, F), lengths (B,)."""
        encodings, lengths = self.encoder(self.normalise(features), num_frames)
        return self.head(encodings), lengths

    def losses(
        self,
        features: Tensor,
        num_frames: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of each utterance.

        Args:
            features: (B, T, F).
            num_frames: (B,) int64 valid frames.
            tokens: (B, U) int64.
            num_tokens: (B,) int64 valid tokens.
            generator: where augmentation draws from; None leaves features as they are.

        Returns:
            (B,) float32, in nats per utterance.
        """
        features = self.normalise(features)
        if self.augment is not None and generator is not None:
            features = self.augment(features, num_frames, generator)
        encodings, lengths = self.encoder(features, num_frames)
        loss: Tensor = self.head.loss(encodings, lengths, tokens, num_tokens)  # type: ignore[operator]
        return loss
