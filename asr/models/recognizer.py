"""The recognizer: features → normalization → augmentation → encoder → head.

B batch, T frames, F mel bins, D width, U tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from asr.features.log_mel import GlobalNorm
from asr.models.heads.protocols import Head, Losses

BIAS_STD = 0.01


class Augment(Protocol):
    """Changes features in training, but moves no frame in time; one generator state always gives one change.

    It may have an attribute ``needs``: the ``content`` of the only features that it is for.
    """

    def __call__(self, features: Tensor, num_frames: Tensor, generator: torch.Generator) -> Tensor:
        """Return changed features (B, T, F); each utterance is changed differently."""


class Encoder(Protocol):
    """Turns features into encodings: a torch module whose constructor takes ``num_features``.

    Attributes:
        d_model: D, width of the encodings.
        subsampling_factor: frames of features for each encoding.
        center_frames: if it exists, the middle of the audio that the first encoding stands for, in frames of features
            from the start. Without it, that is the middle of the fewest frames that ``output_frames`` makes one of.
    """

    d_model: int
    subsampling_factor: int

    def output_frames(self, num_frames: Tensor) -> Tensor:
        """Return the number of encodings (B,) of utterances of ``num_frames`` (B,) frames."""

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return encodings (B, T', D) and valid lengths (B,) int64.

        Args:
            features: (B, T, F); padding may hold anything.
            num_frames: (B,) int64 valid frames.
        """


@runtime_checkable
class HasInnerLayers(Protocol):
    """An encoder that can return the encodings of its inner layers."""

    num_layers: int

    def encode_layers(
        self, features: Tensor, num_frames: Tensor, numbers: Collection[int]
    ) -> tuple[list[Tensor], Tensor]:
        """Return encodings of the layers of these numbers and of the last, each (B, T, D), and their lengths (B,)."""


@runtime_checkable
class HasTrainedSeconds(Protocol):
    """An encoder or a head that changes during training."""

    def set_trained_seconds(self, audio_s: float) -> None:
        """Set the seconds of audio in all updates so far."""


class Recognizer(nn.Module):
    """Joins the parts that every recipe chooses, in this order, without further logic.

    Args:
        encoder: features and lengths → encodings and lengths; see `Encoder`.
        head: encodings → losses, and what decoders search with.
        normalize: fixed statistics of the training features.
        augment: applied in training only, or None.

    Raises:
        ValueError: the head needs inner layers that the encoder does not have.
    """

    def __init__(self, encoder: nn.Module, head: Head, normalize: GlobalNorm, augment: Augment | None = None) -> None:
        super().__init__()
        num_layers = encoder.num_layers if isinstance(encoder, HasInnerLayers) else 1
        if max(numbers := list(head.intermediate_layers), default=0) >= num_layers:
            allowed = f"from 1 to {num_layers - 1}" if num_layers > 1 else "none; choose a transformer or a conformer"
            raise ValueError(
                f"intermediate_layers={numbers}: inner layers of this {type(encoder).__name__} are {allowed}"
            )
        self.normalize, self.encoder, self.head = normalize, encoder, head
        self.augment = augment

    @property
    def subsampling_factor(self) -> int:
        """Frames of features for each encoding."""
        return self.encoder.subsampling_factor  # type: ignore[return-value]

    @property
    def center_frames(self) -> float:
        """Where the first encoding has its middle, in frames of features, see `Encoder`."""
        if (center := getattr(self.encoder, "center_frames", None)) is not None:
            return float(center)
        num_encodings: Tensor = self.encoder.output_frames(torch.arange(64 * self.subsampling_factor, device="cpu"))  # type: ignore[operator]
        return int((num_encodings < 1).sum()) / 2

    @property
    def unsaved(self) -> set[str]:
        """Names of weights that checkpoints leave out, as a pretrained model's own files have them."""
        return {f"encoder.{name}" for name in getattr(self.encoder, "unsaved", ())}

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return encodings (B, T', D) and valid lengths (B,) of features (B, T, F), lengths (B,)."""
        return self.encoder(self.normalize(features), num_frames)

    def set_trained_seconds(self, audio_s: float) -> None:
        """Pass the seconds of audio in all updates so far to the parts that change during training."""
        for part in (self.encoder, self.head):
            if isinstance(part, HasTrainedSeconds):
                part.set_trained_seconds(audio_s)

    def losses(
        self,
        features: Tensor,
        num_frames: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        generator: torch.Generator | None = None,
        encoder: Any = None,
    ) -> Losses:
        """Return the loss of each utterance.

        Args:
            features: (B, T, F).
            num_frames: (B,) int64 valid frames.
            tokens: (B, U) int64.
            num_tokens: (B,) int64 valid tokens.
            generator: for the augmentation; None leaves features unchanged.
            encoder: computes the passes of this recognizer's encoder in another way; None: the encoder itself.
        """
        features, views = self.normalize(features), self.head.num_views
        if views > 1:
            features, num_frames = features.repeat(views, 1, 1), num_frames.repeat(views)
        # after the copies: each view is augmented differently
        if self.augment is not None and generator is not None:
            features = self.augment(features, num_frames, generator)
        layers, lengths = self._encode_layers(features, num_frames, self.encoder if encoder is None else encoder)
        return self._loss(layers, lengths, tokens, num_tokens)

    def encode_layers(self, features: Tensor, num_frames: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return encodings (B, T', D) of the layers that the loss needs, `forward`'s last, and lengths (B,)."""
        return self._encode_layers(self.normalize(features), num_frames, self.encoder)

    def losses_of(self, layers: Sequence[Tensor], num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Losses:
        """Return the loss of each utterance without augmentation, where all views are equal.

        Args:
            layers: (B, T', D) each, of `encode_layers`.
            num_frames: (B,) int64 valid encodings, of `encode_layers`.
            tokens: (B, U) int64.
            num_tokens: (B,) int64 valid tokens.
        """
        views = self.head.num_views
        copies = [layer.repeat(views, 1, 1) for layer in layers]
        return self._loss(copies, num_frames.repeat(views), tokens, num_tokens)

    def _loss(self, layers: Sequence[Tensor], num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Losses:
        *inner, last = layers
        return self.head.loss(last, num_frames, tokens, num_tokens, *([inner] if inner else []))

    def _encode_layers(self, features: Tensor, num_frames: Tensor, encoder: Any) -> tuple[list[Tensor], Tensor]:
        if self.head.intermediate_layers:
            return encoder.encode_layers(features, num_frames, self.head.intermediate_layers)
        encodings, lengths = encoder(features, num_frames)
        return [encodings], lengths


def is_pretrained(encoder: Any) -> bool:
    """Return whether an encoder was trained by others, on features as they are."""
    return bool(getattr(encoder, "is_pretrained", False))


def initialize(model: nn.Module) -> None:
    """Give every bias that starts at zero a small random value, but for those of a pretrained encoder.

    Optimizers whose steps are relative to the parameter (Cain, ScaledAdam, LearnedGradient) need hundreds of updates to
    leave zero; a fair comparison of optimizers needs the same initialization for all.
    """
    pretrained = "encoder." if is_pretrained(getattr(model, "encoder", None)) else "/"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and not name.startswith(pretrained) and not parameter.any():
                parameter.normal_(std=BIAS_STD)
