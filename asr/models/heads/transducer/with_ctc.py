"""A transducer beside which CTC is trained on the same encodings.

B batch, T frames, D width, U tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from asr.models.heads.cr_ctc import CrCtcHead
from asr.models.heads.ctc import CtcHead
from asr.models.heads.protocols import Losses
from asr.models.heads.transducer.head import Backend, PredictorDim, PruneRange, TransducerHead
from asr.options import Probability, Share


class TransducerCtcHead(TransducerHead):
    """Transducer loss plus ``ctc_weight`` times that of CTC, or of CTC on two views; decoders for either can search.

    Args:
        d_model: as in `TransducerHead`, like all arguments up to ``ref_duration_s``.
        vocab_size: V.
        predictor_dim: P.
        joiner_dim: J.
        context_size: C.
        prune_range: R, or None.
        lm_scale: in [0, 1).
        simple_loss_scale: in [0, 1].
        warmup_batches: of the transducer's losses.
        ref_duration_s: seconds of audio that count as one batch.
        backend: of the transducer's loss.
        ctc_weight: of the whole loss of CTC, above 0.
        ctc_dropout: probability in [0, 1) before the projection of CTC.
        consistency_weight: as in `CrCtcHead`: two augmented views of each utterance should have the same distributions,
            and the transducer learns from both; 0: one view.

    Reference:
        icefall's zipformer recipe, with ``--use-ctc`` (weight 0.2), and with ``--use-cr-ctc`` too (0.1 for CTC and 0.02
        for the views, which are ``ctc_weight=0.1 consistency_weight=0.2``).
    """

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        predictor_dim: PredictorDim = 512,
        joiner_dim: PositiveInt = 512,
        context_size: PositiveInt = 2,
        prune_range: PruneRange | None = 5,
        lm_scale: Probability = 0.25,
        simple_loss_scale: Share = 0.5,
        warmup_batches: NonNegativeFloat = 2000.0,
        ref_duration_s: PositiveFloat = 600.0,
        ctc_weight: PositiveFloat = 0.2,
        ctc_dropout: Probability = 0.1,
        consistency_weight: NonNegativeFloat = 0.0,
        backend: Backend = "torch",
    ) -> None:
        sizes = predictor_dim, joiner_dim, context_size, prune_range
        scales = lm_scale, simple_loss_scale, warmup_batches, ref_duration_s
        super().__init__(d_model, vocab_size, *sizes, *scales, backend)
        self.ctc_weight = ctc_weight
        self.ctc = (
            CrCtcHead(d_model, vocab_size, ctc_dropout, consistency_weight)
            if consistency_weight
            else CtcHead(d_model, vocab_size, ctc_dropout)
        )
        self.num_views = self.ctc.num_views
        self.loss_names = (*self.loss_names, *self.ctc.loss_names)

    def loss(
        self,
        encodings: Tensor,
        num_frames: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        intermediate: Sequence[Tensor] = (),
    ) -> Losses:
        """Return losses (B,) in nats of encodings (``num_views`` · B, T, D) and tokens (B, U), see ``Head.loss``.

        The transducer's is the mean over views.
        """
        ctc = self.ctc.loss(encodings, num_frames, tokens, num_tokens)
        views = tokens.repeat(self.num_views, 1), num_tokens.repeat(self.num_views)
        total, parts, feasible = super().loss(encodings, num_frames, *views)
        feasible = ctc.feasible & feasible.view(self.num_views, -1).all(dim=0)
        of_both = {name: part.view(self.num_views, -1).mean(dim=0) for name, part in parts.items()}
        of_both.update(ctc.parts)
        total = total.view(self.num_views, -1).mean(dim=0) + self.ctc_weight * ctc.total
        return Losses.where(feasible, total, of_both)

    def frame_log_probs(self, encodings: Tensor) -> Tensor:
        """Return CTC's log-probabilities (B, T, V) in float32 of encodings (B, T, D)."""
        return self.ctc.frame_log_probs(encodings)
