"""Best texts of CTC, ranked again by an attention decoder.

B batch, T frames, D width, N texts of all utterances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.ctc_beam import BeamOptions, CtcBeam
from asr.decoding.greedy import Hypothesis, ranked
from asr.models import devices
from asr.models.heads.protocols import ScoresFramesAndTexts
from asr.ranges import Fraction

TRIED_CTC_WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)


class AttentionRescoring(CtcBeam):
    """Scores the texts of a CTC prefix beam by ``ctc_weight`` · CTC + (1 − ``ctc_weight``) · attention.

    Reference:
        Yao et al. 2021, "WeNet: Production oriented streaming and non-streaming end-to-end speech recognition toolkit",
        arXiv:2102.01547, for two passes. Differs: both weights add up to 1.
    """

    needs = ScoresFramesAndTexts

    def __init__(self, ctc_weight: Fraction = 0.3, **beam: Unpack[BeamOptions]) -> None:
        """Set the options.

        Args:
            ctc_weight: of the score of the beam, with all that is added to it; in [0, 1].
            beam: see `CtcBeam`; all its texts are scored.
        """
        super().__init__(**beam)
        self.ctc_weight = ctc_weight

    @property
    def notes(self) -> list[str]:
        """Return what is loaded into the beam, and the weight of its scores."""
        return [*super().notes, f"weight of CTC {self.ctc_weight:g}, of attention {1 - self.ctc_weight:g}"]

    @property
    def tunable(self) -> Mapping[str, Sequence[float]]:
        """Return the weights of the beam, and that of its scores."""
        return {**super().tunable, "ctc_weight": TRIED_CTC_WEIGHTS}

    def weigh(self, ctc_weight: float | None = None, **weights: float) -> None:
        """Change some of the weights."""
        if ctc_weight is not None:
            self.ctc_weight = ctc_weight
        super().weigh(**weights)

    def __call__(  # type: ignore[override]  # ``needs`` tells of the other head
        self, head: ScoresFramesAndTexts, encodings: Tensor, num_frames: Tensor
    ) -> list[list[Hypothesis]]:
        """Return the texts of the beam, in their new order; see ``Decoder``.

        Args:
            head: scores frames and texts.
            encodings: (B, T, D).
            num_frames: (B,) valid frames.
        """
        beams = super().__call__(head, encodings, num_frames)
        texts = [
            torch.tensor(hypothesis.tokens, dtype=torch.int64) for hypotheses in beams for hypothesis in hypotheses
        ]
        rows = torch.tensor([row for row, hypotheses in enumerate(beams) for _ in hypotheses], device=encodings.device)
        scores = head.text_log_probs(
            encodings[rows],
            num_frames[rows],
            pad_sequence(texts, batch_first=True).to(encodings.device),
            torch.tensor([len(text) for text in texts], device=encodings.device),
        )
        attention = iter(devices.to_host(scores))
        rescored = (
            [
                replace(hypothesis, score=self.ctc_weight * hypothesis.score + (1 - self.ctc_weight) * next(attention))
                for hypothesis in beam
            ]
            for beam in beams
        )
        return [ranked(beam) for beam in rescored]
