"""CTC heads: plain, with consistency regularization, and with an attention decoder.

B batch, T frames, D width, U tokens, V vocabulary, S tokens that a text has so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from asr.models.heads.protocols import Losses
from asr.models.kernels import is_padding
from asr.ranges import PartialFraction, Probability
from asr.text.tokenizer import BLANK_ID

START_ID = END_ID = BLANK_ID
LONGEST_WAVE = 10_000.0


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
        intermediate_weight: PartialFraction = 0.3,
    ) -> None:
        super().__init__()
        self.intermediate_layers, self.intermediate_weight = tuple(intermediate_layers), intermediate_weight
        self.loss_names = (*self.layer_names, *(["intermediate"] if intermediate_layers else []))
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(d_model, vocab_size)
        self.matrix_blocks = {"project.weight": {"why": "output layer: not for Muon"}}

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


def disagreement(log_probs: Tensor, num_frames: Tensor) -> Tensor:
    """Return the divergence of two views of each utterance: ½ KL(b ‖ a) + ½ KL(a ‖ b), summed over valid frames.

    In each divergence the first distribution is the target: no gradient goes through it.

    Args:
        log_probs: (2B, T, V), all second views after all first ones.
        num_frames: (2B,) int64 valid frames, the same for both views.

    Returns:
        (B,), in nats per utterance.
    """
    # held fixed: a view learns from the other, and does not make itself an easier target
    targets = log_probs.detach().roll(len(log_probs) // 2, dims=0)
    divergence = F.kl_div(log_probs, targets, reduction="none", log_target=True).sum(dim=2)
    divergence = divergence.masked_fill(is_padding(num_frames, log_probs.shape[1]), 0.0)
    return 0.5 * divergence.sum(dim=1).view(2, -1).sum(dim=0)


class CrCtcHead(CtcHead):
    """CTC on two differently augmented views of each utterance, which should have the same distributions.

    The loss is the mean of both views' CTC losses, plus ``consistency_weight`` times the divergence of the views, see
    `disagreement`. Decoding is that of CTC. An update costs about twice as much as with CTC.

    Args:
        d_model: width D of the encodings.
        vocab_size: V, with the blank.
        dropout: probability in [0, 1), in training, before the projection.
        consistency_weight: α, above 0 and finite.
        intermediate_layers: as in `CtcHead`; the loss of each is of the same form.
        intermediate_weight: as in `CtcHead`.

    Reference:
        Yao et al. 2024, "CR-CTC: Consistency regularization on CTC for improved speech recognition", arXiv:2410.05101:
        α = 0.2, 2.5 times as much masking of time as for CTC, and half the audio in an update and half the epochs.
        Differs: an utterance too short for its transcript has a loss of 0, without the divergence of its views;
        features are not warped in time before they are copied.
    """

    num_views = 2
    layer_names = ("ctc", "consistency")

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        dropout: Probability = 0.0,
        consistency_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2,
        intermediate_layers: Sequence[PositiveInt] = (),
        intermediate_weight: PartialFraction = 0.3,
    ) -> None:
        super().__init__(d_model, vocab_size, dropout, intermediate_layers, intermediate_weight)
        self.consistency_weight = consistency_weight

    def layer_loss(
        self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (B,) of each utterance from the encodings (2B, T, D) of one layer, and its parts."""
        log_probs = self.frame_log_probs(encodings)
        both = ctc_losses(log_probs, num_frames, tokens.repeat(2, 1), num_tokens.repeat(2))
        ctc, apart = both.view(2, -1).mean(dim=0), disagreement(log_probs, num_frames)
        return ctc + self.consistency_weight * apart, {"ctc": ctc, "consistency": apart}


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
        self.matrix_blocks = {"project.weight": {"why": "output layer: not for Muon"}}

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
        padding = is_padding(num_frames, encodings.shape[1])
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
        ctc_weight: PartialFraction = 0.3,
        ctc_dropout: Probability = 0.0,
        label_smoothing: Probability = 0.1,
    ) -> None:
        super().__init__()
        self.ctc_weight, self.label_smoothing = ctc_weight, label_smoothing
        self.ctc = CtcHead(d_model, vocab_size, ctc_dropout)
        self.attention = AttentionDecoder(d_model, vocab_size, num_layers, num_heads, d_feedforward, dropout)

    def loss(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Losses:
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
