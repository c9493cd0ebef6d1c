"""Interfaces of heads: losses for training, and parts that a decoder searches with.

B batch, T frames, D width of encodings, U tokens, V vocabulary (blank is 0), J width of a joiner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Losses(NamedTuple):
    """Losses of a batch, in nats per utterance.

    Attributes:
        total: (B,) float32, what is trained; 0, without gradient, of an utterance that is not feasible.
        parts: (B,) each, by name, as in ``Head.loss_names``.
        feasible: (B,) bool, whether an utterance has enough frames for its transcript.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    feasible: Tensor

    @classmethod
    def where(cls, feasible: Tensor, total: Tensor, parts: Mapping[str, Tensor]) -> Losses:
        """Return losses (B,) that are 0, without gradient, of utterances that are not ``feasible`` (B,)."""
        return cls(
            total.where(feasible, 0.0), {name: part.where(feasible, 0.0) for name, part in parts.items()}, feasible
        )


class Head(Protocol):
    """Turns encodings into losses; decoders ask for one of the other protocols of this file too.

    Attributes:
        num_views: differently augmented views of each utterance that the loss needs.
        intermediate_layers: of the encoder, counted from 1, whose encodings the loss needs too.
        loss_names: of the parts of the loss.
    """

    num_views: int
    intermediate_layers: Sequence[int]
    loss_names: tuple[str, ...]

    def loss(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Losses:
        """Return the loss of each utterance; with ``intermediate_layers`` their encodings are a last argument.

        Args:
            encodings: (B, T, D); with several views (``num_views`` · B, T, D), view after view.
            num_frames: valid frames, int64, as many as encodings.
            tokens: (B, U) int64, no blanks; padding may hold any token.
            num_tokens: (B,) int64 valid tokens.
        """


@runtime_checkable
class FrameScores(Protocol):
    """A head that scores every token in every frame, as CTC does."""

    def frame_log_probs(self, encodings: Tensor) -> Tensor:
        """Return log-probabilities (B, T, V) in float32 of encodings (B, T, D)."""


@runtime_checkable
class Transduces(Protocol):
    """A head that predicts the next token from a frame and the tokens so far.

    Attributes:
        context_size: C, last tokens that a prediction depends on.
    """

    context_size: int

    def project(self, encodings: Tensor) -> Tensor:
        """Return the joiner's part (B, T, J) of encodings (B, T, D)."""

    def predict(self, context: Tensor) -> Tensor:
        """Return the joiner's part (N, J) of the last tokens (N, C) int64.

        Before the first token stands a blank, and -1 before that.
        """

    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """Return log-probabilities (…, V) in float32 of both parts (…, J), which broadcast.

        A blank leads to the next frame.
        """


@runtime_checkable
class ScoresPaths(Protocol):
    """A transducer that scores the blanks and tokens of all alignments of a text."""

    def path_scores(self, encodings: Tensor, tokens: Tensor, num_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T, U + 1) of a blank, and of the token after each place between tokens.

        Args:
            encodings: (B, T, D).
            tokens: (B, U) int64; padding may hold any token.
            num_tokens: (B,) int64 valid tokens; U is the most of them.
        """


@runtime_checkable
class ScoresFramesAndTexts(FrameScores, Protocol):
    """A head that scores tokens in frames, and whole texts too."""

    def text_log_probs(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the log-probability (B,) of each text.

        Args:
            encodings: (B, T, D).
            num_frames: (B,) int64 valid frames.
            tokens: (B, U) int64; padding may hold any token.
            num_tokens: (B,) int64 valid tokens.
        """
