"""Transducer: a prediction from the last tokens joins each frame.

B batch, T frames, D width of encodings, P width of predictions, J width of the joiner, U tokens, C tokens of context, V
vocabulary (blank is 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from asr.models import devices
from asr.models.heads.protocols import Losses
from asr.models.heads.transducer.joint import JointScores
from asr.models.heads.transducer.lattice import PathLosses
from asr.models.heads.transducer.pruning import band_losses, band_starts, simple_scores
from asr.options import Probability, Share
from asr.text.vocabulary import BLANK_ID

FIRST_PRUNED_SCALE = 0.1
GROUP_SIZE = 4  # channels of the predictor's convolution that see each other

PredictorDim = Annotated[int, Field(ge=GROUP_SIZE, multiple_of=GROUP_SIZE)]
PruneRange = Annotated[int, Field(ge=2)]
Backend = Literal["torch", "torchaudio"]


class StatelessPredictor(nn.Module):
    """Predicts from the last C tokens alone.

    Args:
        vocab_size: V.
        dim: P, a multiple of 4.
        context_size: C.

    Reference:
        Ghodsi et al. 2020, "RNN-Transducer with stateless prediction network", ICASSP, without recurrence; the grouped
        convolution, ReLU, and names of the weights are those of icefall's zipformer/decoder.py. Differs: no balancers.
    """

    def __init__(self, vocab_size: int, dim: int, context_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.conv = nn.Conv1d(dim, dim, context_size, groups=dim // GROUP_SIZE, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (N, U - C + 1, P), one for each C neighbors of tokens (N, U); -1 is none."""
        embedded = self.embedding(tokens.clamp(min=0)) * (tokens >= 0).unsqueeze(-1)
        return F.relu(self.conv(embedded.transpose(1, 2))).transpose(1, 2)


class Joiner(nn.Module):
    """Weights of softmax(tanh(frame + prediction) · Wᵀ + b), named as in icefall's zipformer/joiner.py."""

    def __init__(self, d_model: int, predictor_dim: int, dim: int, vocab_size: int) -> None:
        super().__init__()
        self.encoder_proj = nn.Linear(d_model, dim)
        self.decoder_proj = nn.Linear(predictor_dim, dim)
        self.output_linear = nn.Linear(dim, vocab_size)


class TransducerHead(nn.Module):
    """Scores transcripts by all alignments, of which those that a simple joiner finds improbable may be left out.

    Without pruning every pair of frame and token is scored, which takes U/R times as long. With it, the loss is
    ``simple_loss_scale`` · simple + pruned, after a warm-up in which the first factor falls from 1, and that of the
    pruned loss rises from 0.1 to 1.

    Args:
        d_model: D.
        vocab_size: V, with the blank.
        predictor_dim: P, a multiple of 4.
        joiner_dim: J.
        context_size: C, at least 1.
        prune_range: R, at least 2: tokens that are scored in each frame; None: all.
        backend: of the loss without pruning: ``torch``; or ``torchaudio``, if installed, which keeps all logits.
        lm_scale: share in [0, 1) of the prediction alone in the simple joiner.
        simple_loss_scale: in [0, 1].
        warmup_batches: of the losses.
        ref_duration_s: seconds of audio that count as one batch, as in Zipformer encoders.

    Raises:
        ValueError: torchaudio has no pruned loss.
        ImportError: torchaudio is not installed, or does not fit this torch.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711.
        Kuang et al. 2022, "Pruned RNN-T for fast, memory-efficient ASR training", arXiv:2206.13236; defaults, warm-up
        and names of the weights are those of icefall's zipformer recipe. Differs: ``band_starts`` maximizes the
        probability inside the band in each frame, and is then corrected from the end to the start.
    """

    num_views = 1
    intermediate_layers: Sequence[int] = ()

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
        backend: Backend = "torch",
    ) -> None:
        super().__init__()
        self.rnnt_loss: Callable[..., Tensor] | None = None
        if backend == "torchaudio":
            if prune_range is not None:
                raise ValueError("backend=torchaudio has no pruned loss; give prune_range=null, or backend=torch")
            # here, because nothing else needs the package
            from torchaudio.functional import rnnt_loss

            self.rnnt_loss = rnnt_loss
        self.prune_range, self.lm_scale, self.simple_loss_scale = prune_range, lm_scale, simple_loss_scale
        self.warmup_s, self.warmed_up = warmup_batches * ref_duration_s, 1.0
        self.context_size = context_size
        self.loss_names = ("transducer",) if prune_range is None else ("simple", "pruned")
        self.predictor = StatelessPredictor(vocab_size, predictor_dim, context_size)
        self.joiner = Joiner(d_model, predictor_dim, joiner_dim, vocab_size)
        if prune_range is not None:
            self.simple_am_proj = nn.Linear(d_model, vocab_size)
            self.simple_lm_proj = nn.Linear(predictor_dim, vocab_size)

    def set_batch_count(self, audio_s: float) -> None:
        """Set the seconds of audio in all updates so far, which decide how much each part of the loss counts."""
        self.warmed_up = min(1.0, audio_s / self.warmup_s) if self.warmup_s else 1.0

    def loss(
        self,
        encodings: Tensor,
        num_frames: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        intermediate: Sequence[Tensor] = (),
    ) -> Losses:
        """Return losses (B,) in nats of encodings (B, T, D) and tokens (B, U), see ``Head.loss``."""
        feasible = num_frames > 0
        num_frames = num_frames.clamp(min=1)  # a lattice without frames has no end; its loss is not used
        if self.prune_range is None:
            exact = self._exact(encodings, num_frames, tokens, num_tokens)
            return Losses.where(feasible, exact, {"transducer": exact})
        inputs = self._inputs(encodings, tokens)
        # sums over hundreds of frames, in 32 bits under autocast too
        with torch.autocast(encodings.device.type, enabled=False):
            total, parts = self._pruned(*inputs, num_frames, num_tokens, self.prune_range)
        # more tokens do not fit into the band
        return Losses.where(feasible & (num_tokens <= (self.prune_range - 1) * num_frames), total, parts)

    def _exact(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the loss (B,) over all alignments."""
        if self.rnnt_loss is None:
            return PathLosses.apply(*self.path_scores(encodings, tokens, num_tokens), num_frames, num_tokens)[0]
        encodings, predictions, labels = self._inputs(encodings, tokens)
        with torch.autocast(encodings.device.type, enabled=False):
            frames, places = self.joiner.encoder_proj(encodings), self.joiner.decoder_proj(predictions)
            longest = devices.to_host(num_frames.max())
            logits = self.joiner.output_linear((frames[:, :longest, None] + places[:, None]).tanh())
            counts = (x.int() for x in (labels[:, :-1], num_frames, num_tokens))
            return self.rnnt_loss(logits.float(), *counts, blank=BLANK_ID, reduction="none")

    def path_scores(self, encodings: Tensor, tokens: Tensor, num_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, T, U + 1) of blanks and tokens at all places, see ``ScoresPaths``."""
        encodings, predictions, labels = self._inputs(encodings, tokens)
        with torch.autocast(encodings.device.type, enabled=False):
            all_places = torch.arange(labels.shape[1], device=labels.device).expand(*encodings.shape[:2], -1)
            return self._joint_scores(encodings, predictions, labels, all_places)

    def _inputs(self, encodings: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return encodings, the predictions (B, U + 1, P) around tokens, and the token (B, U + 1) after each."""
        history = F.pad(F.pad(tokens, (1, 0), value=BLANK_ID), (self.context_size - 1, 0), value=-1)
        dtype = self.joiner.output_linear.weight.dtype
        return encodings.to(dtype), self.predictor(history).to(dtype), F.pad(tokens, (0, 1))

    def _pruned(
        self,
        encodings: Tensor,
        predictions: Tensor,
        labels: Tensor,
        num_frames: Tensor,
        num_tokens: Tensor,
        prune_range: int,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        num_kept = min(prune_range, labels.shape[1])
        acoustic = _at_least_float32(self.simple_am_proj(encodings))
        language = _at_least_float32(self.simple_lm_proj(predictions))
        scores = simple_scores(acoustic, language, labels, self.lm_scale)
        simple, takes_blank, takes_label = PathLosses.apply(*scores, num_frames, num_tokens)
        starts = band_starts(takes_blank + takes_label, num_frames, num_tokens, num_kept)
        kept = starts[..., None] + torch.arange(num_kept, device=starts.device)
        blank, label = self._joint_scores(encodings, predictions, labels, kept)
        pruned = band_losses(blank, label, kept, labels.shape[1], num_frames, num_tokens)
        simple_scale = 1 - (1 - self.simple_loss_scale) * self.warmed_up
        pruned_scale = FIRST_PRUNED_SCALE + (1 - FIRST_PRUNED_SCALE) * self.warmed_up
        return simple_scale * simple + pruned_scale * pruned, {"simple": simple, "pruned": pruned}

    def _joint_scores(
        self, encodings: Tensor, predictions: Tensor, labels: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of blanks and labels at the places (B, T, R) that are kept."""
        joiner = self.joiner
        inputs = joiner.encoder_proj(encodings), joiner.decoder_proj(predictions), *joiner.output_linear.parameters()
        return JointScores.apply(*map(_at_least_float32, inputs), kept, labels.gather(1, kept.flatten(1)).view_as(kept))

    def project(self, encodings: Tensor) -> Tensor:
        """Return the joiner's part (B, T, J) of encodings (B, T, D)."""
        return self.joiner.encoder_proj(encodings)

    def predict(self, context: Tensor) -> Tensor:
        """Return the joiner's part (N, J) of contexts (N, C), see ``Transduces``."""
        return self.joiner.decoder_proj(self.predictor(context)).squeeze(1)

    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """Return log-probabilities (…, V) in float32 of both parts (…, J), see ``Transduces``."""
        return F.log_softmax(self.joiner.output_linear((frames + predictions).tanh()).float(), dim=-1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
