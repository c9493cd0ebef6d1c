"""CTC and an attention decoder on the same encodings.

B batch, T frames, D width, U tokens, S = U + 1 tokens with the end, V vocabulary. The decoder has no blank: its number
stands for the start and the end of a text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from asr.models.heads.ctc import CtcHead
from asr.models.heads.protocols import Losses
from asr.options import PartialShare, Probability
from asr.text.vocabulary import BLANK_ID

START_ID = END_ID = BLANK_ID
LONGEST_WAVE = 10_000.0


class AttentionDecoder(nn.Module):
    """Predicts each token of a text from all tokens before it and all frames.

    Args:
        d_model: D, a multiple of ``num_heads``, and even.
        vocab_size: V.
        num_layers: of the decoder.
        num_heads: of each attention.
        d_feedforward: inner width of the feed-forward blocks.
        dropout: probability in [0, 1).

    Reference:
        Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, section 3, by torch's own layers. Differs:
        normalization comes first in each block.
    """

    def __init__(
        self, d_model: int, vocab_size: int, num_layers: int, num_heads: int, d_feedforward: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(d_model, num_heads, d_feedforward, dropout, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.project = nn.Linear(d_model, vocab_size)

    def forward(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor) -> Tensor:
        """Return logits (B, S, V) in float32 of the token after each of S tokens.

        Args:
            encodings: (B, T, D).
            num_frames: (B,) int64 valid frames.
            tokens: (B, S) int64, the start first; what comes after the end changes nothing before it.
        """
        num_places, width = tokens.shape[1], encodings.shape[2]
        places = torch.arange(num_places, device=tokens.device)
        rates = torch.arange(0, width, 2, device=tokens.device) * (-math.log(LONGEST_WAVE) / width)
        angles = places[:, None] * rates.exp()
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        hidden = self.dropout(self.embedding(tokens) * math.sqrt(width) + waves)
        later = places > places[:, None]
        padding = torch.arange(encodings.shape[1], device=tokens.device) >= num_frames[:, None]
        for layer in self.layers:
            hidden = layer(hidden, encodings, tgt_mask=later, memory_key_padding_mask=padding)
        return self.project(self.norm(hidden)).float()


class CtcAttentionHead(nn.Module):
    """``ctc_weight`` · CTC loss + (1 − ``ctc_weight``) · cross entropy of an attention decoder with smoothed labels.

    Args:
        d_model: D, a multiple of ``num_heads``.
        vocab_size: V, with the blank.
        num_layers: of the decoder, at least 1.
        num_heads: of each attention.
        d_feedforward: inner width of the feed-forward blocks.
        dropout: of the decoder, probability in [0, 1).
        ctc_weight: in (0, 1).
        ctc_dropout: probability in [0, 1) before the projection of CTC.
        label_smoothing: share in [0, 1) of each label that is spread over all tokens.

    Reference:
        Hori et al. 2017, "Advances in joint CTC-attention based end-to-end speech recognition with a deep CNN encoder
        and RNN-LM", arXiv:1706.02737, for joint training; weight 0.3 and smoothing 0.1 as in the recipes of ESPnet and
        WeNet.
    """

    num_views = 1
    intermediate_layers: Sequence[int] = ()
    loss_names = ("ctc", "attention")

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        num_layers: PositiveInt = 3,
        num_heads: PositiveInt = 4,
        d_feedforward: PositiveInt = 512,
        dropout: Probability = 0.1,
        ctc_weight: PartialShare = 0.3,
        ctc_dropout: Probability = 0.0,
        label_smoothing: Probability = 0.1,
    ) -> None:
        super().__init__()
        self.ctc_weight, self.label_smoothing = ctc_weight, label_smoothing
        self.ctc = CtcHead(d_model, vocab_size, ctc_dropout)
        self.attention = AttentionDecoder(d_model, vocab_size, num_layers, num_heads, d_feedforward, dropout)

    def loss(
        self,
        encodings: Tensor,
        num_frames: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        intermediate: Sequence[Tensor] = (),
    ) -> Losses:
        """Return losses (B,) in nats of encodings (B, T, D) and tokens (B, U), see ``Head.loss``."""
        ctc = self.ctc.loss(encodings, num_frames, tokens, num_tokens)
        attention = self._cross_entropy(encodings, num_frames, tokens, num_tokens, self.label_smoothing)
        total = self.ctc_weight * ctc.total + (1 - self.ctc_weight) * attention
        parts = {**ctc.parts, "attention": attention}
        return Losses.where(ctc.feasible, total, parts)

    def frame_log_probs(self, encodings: Tensor) -> Tensor:
        """Return CTC's log-probabilities (B, T, V) in float32 of encodings (B, T, D)."""
        return self.ctc.frame_log_probs(encodings)

    def text_log_probs(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the attention decoder's log-probability (B,) of each text, its end included.

        Args:
            encodings: (B, T, D).
            num_frames: (B,) int64 valid frames.
            tokens: (B, U) int64; padding may hold any token.
            num_tokens: (B,) int64 valid tokens.
        """
        return -self._cross_entropy(encodings, num_frames, tokens, num_tokens, 0.0)

    def _cross_entropy(
        self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor, label_smoothing: float
    ) -> Tensor:
        """Return the sum (B,) over the tokens and the end of each text, in nats."""
        logits = self.attention(encodings, num_frames, F.pad(tokens, (1, 0), value=START_ID))
        places = torch.arange(logits.shape[1], device=tokens.device)
        labels = F.pad(tokens, (0, 1)).masked_fill(places == num_tokens[:, None], END_ID)
        losses = F.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=label_smoothing)
        return losses.masked_fill(places > num_tokens[:, None], 0.0).sum(dim=1)
