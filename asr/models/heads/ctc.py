"""Connectionist temporal classification.

B batch, T frames, D width, U tokens, V vocabulary (blank is 0).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.text.vocabulary import BLANK_ID


class CtcHead(nn.Module):
    """Projects encodings to log-probabilities of tokens and blank, and scores transcripts with them.

    Reference:
        Graves et al. 2006, "Connectionist Temporal Classification", section 3 and 4.1.
    """

    def __init__(self, d_model: int, vocab_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2 (blank and one token), given {vocab_size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), given {dropout}")
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(d_model, vocab_size)

    def forward(self, encodings: Tensor) -> Tensor:
        """Return log-probabilities (B, T, V) in float32 of encodings (B, T, D)."""
        return F.log_softmax(self.project(self.dropout(encodings)).float(), dim=-1)

    def loss(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the negative log-likelihood of each transcript.

        Args:
            encodings: (B, T, D).
            num_frames: (B,) int64 valid frames.
            tokens: (B, U) int64, no blanks; padding may hold any token.
            num_tokens: (B,) int64 valid tokens.

        Returns:
            (B,) float32, in nats per utterance; 0, without gradient, where the frames are too few for the tokens.
        """
        log_probs = self(encodings).transpose(0, 1)
        # the CUDA backward adds in no fixed order; where that must not be, the loss is taken on the CPU
        where = "cpu" if torch.are_deterministic_algorithms_enabled() else log_probs.device
        losses = F.ctc_loss(
            log_probs.to(where),
            tokens.to(where),
            num_frames.to(where),
            num_tokens.to(where),
            blank=BLANK_ID,
            reduction="none",
            zero_infinity=True,
        )
        return losses.to(log_probs.device)
