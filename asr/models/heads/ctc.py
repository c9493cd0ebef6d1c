"""Connectionist temporal classification.

B batch, T frames, D width, U tokens, V vocabulary (blank is 0).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.models.heads.protocols import Losses
from asr.options import PartialShare, Probability
from asr.text.vocabulary import BLANK_ID


def ctc_losses(log_probs: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
    """Return the negative log-likelihood of each transcript.

    Args:
        log_probs: (B, T, V).
        num_frames: (B,) int64 valid frames.
        tokens: (B, U) int64, no blanks; padding may hold any token.
        num_tokens: (B,) int64 valid tokens.

    Returns:
        (B,), in nats per utterance; 0, without gradient, where `has_alignment` is false.
    """
    # the CUDA backward adds in no fixed order, and refuses to if torch must be deterministic: then the CPU does it
    where = "cpu" if torch.are_deterministic_algorithms_enabled() else log_probs.device
    losses = F.ctc_loss(
        log_probs.transpose(0, 1).to(where),
        tokens.to(where),
        num_frames.to(where),
        num_tokens.to(where),
        blank=BLANK_ID,
        reduction="none",
        zero_infinity=True,  # one utterance too short for its transcript would make the update infinite
    )
    return losses.to(log_probs.device)


def has_alignment(num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
    """Return whether there are enough frames for the tokens, and for a blank between equal neighbors: (B,) bool.

    Args:
        num_frames: (B,) int64 valid frames.
        tokens: (B, U) int64; padding may hold any token.
        num_tokens: (B,) int64 valid tokens.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)[1:]
    repeated = (tokens[:, 1:] == tokens[:, :-1]) & (places < num_tokens.unsqueeze(1))
    return num_frames >= num_tokens + repeated.sum(dim=1)


class CtcHead(nn.Module):
    """Projects encodings to log-probabilities of tokens and blank, and scores transcripts with them.

    Args:
        d_model: width D of the encodings.
        vocab_size: V, with the blank.
        dropout: probability in [0, 1), in training, before the projection.
        intermediate_layers: of the encoder, counted from 1, whose encodings are scored too, in training.
        intermediate_weight: w of the mean of their losses in (1 − w) · loss of the last layer + w · mean; in (0, 1).

    Reference:
        Graves et al. 2006, "Connectionist Temporal Classification", section 3 and 4.1.
        Lee and Watanabe 2021, "Intermediate Loss Regularization for CTC-based Speech Recognition", arXiv:2102.03216:
        intermediate losses, as of models without the later layers: with the same final norm and projection.
    """

    num_views = 1
    layer_names: tuple[str, ...] = ("ctc",)  # of the parts of one layer's loss

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        dropout: Probability = 0.0,
        intermediate_layers: Sequence[PositiveInt] = (),
        intermediate_weight: PartialShare = 0.3,
    ) -> None:
        super().__init__()
        self.intermediate_layers, self.intermediate_weight = tuple(intermediate_layers), intermediate_weight
        self.loss_names = (*self.layer_names, *(["intermediate"] if intermediate_layers else []))
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(d_model, vocab_size)

    def frame_log_probs(self, encodings: Tensor) -> Tensor:
        """Return log-probabilities (B, T, V) in float32 of encodings (B, T, D)."""
        # in 32 bits under autocast too: the loss adds up hundreds of frames
        return F.log_softmax(self.project(self.dropout(encodings)).float(), dim=-1)

    def loss(
        self,
        encodings: Tensor,
        num_frames: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        intermediate: Sequence[Tensor] = (),
    ) -> Losses:
        """Return losses (B,) in nats of encodings (``num_views`` · B, T, D) and tokens (B, U), see ``Head.loss``."""
        feasible = has_alignment(num_frames[: len(tokens)], tokens, num_tokens)
        total, parts = self.layer_loss(encodings, num_frames, tokens, num_tokens)
        if intermediate:
            inner = [self.layer_loss(layer, num_frames, tokens, num_tokens)[0] for layer in intermediate]
            parts["intermediate"] = torch.stack(inner).mean(dim=0)
            total = (1 - self.intermediate_weight) * total + self.intermediate_weight * parts["intermediate"]
        return Losses.where(feasible, total, parts)

    def layer_loss(
        self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (B,) of each utterance from the encodings (B, T, D) of one layer, and its parts."""
        losses = ctc_losses(self.frame_log_probs(encodings), num_frames, tokens, num_tokens)
        return losses, {"ctc": losses}
