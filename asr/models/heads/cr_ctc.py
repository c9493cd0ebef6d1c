"""Consistency-regularized connectionist temporal classification.

B batch, T frames, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from asr.models.heads.ctc import CtcHead, ctc_losses
from asr.options import PartialShare, Probability


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
    frames = torch.arange(log_probs.shape[1], device=log_probs.device)
    divergence = divergence.masked_fill(frames >= num_frames.unsqueeze(1), 0.0)
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
        intermediate_weight: PartialShare = 0.3,
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
