"""Transducer heads: predictor, joiner, the lattice and its pruning, and with an auxiliary CTC loss.

B batch, T frames, U tokens, S = U + 1 places between them, R places that are kept in a frame, V vocabulary, D width of
encodings, P of predictions, J of the joiner, C tokens of context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from asr.models import devices
from asr.models.heads.ctc import CrCtcHead, CtcHead
from asr.models.heads.protocols import Losses
from asr.models.kernels import at_least_float32
from asr.ranges import Fraction, Probability
from asr.text.tokenizer import BLANK_ID

MOST_LOGITS = 1 << 18  # that are computed at a time: those of a few frames, which stay in the cache of a CPU
MOST_KEPT = 5 << 20  # for the backward pass, 20 MB; if there are more, memory is short, and all are computed again
NEVER = -1e30  # a log-probability; two of them can be added
LEAST = 1e-12  # probability below which nothing is learned; denormal numbers would make half of the work
FIRST_PRUNED_SCALE = 0.1
GROUP_SIZE = 4  # channels of the predictor's convolution that see each other

PredictorDim = Annotated[int, Field(ge=GROUP_SIZE, multiple_of=GROUP_SIZE)]
PruneRange = Annotated[int, Field(ge=2)]
Backend = Literal["torch", "torchaudio"]


class JointScores(Function):
    """log P(blank) and log P(label) of softmax(tanh(frame + place) · Wᵀ + b), without all (B, T, R, V) logits.

    The backward pass computes the logits of some frames again, unless all are so few that they are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, places: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return both log-probabilities (B, T, R).

        Args:
            frames: (B, T, J) projected encodings.
            places: (B, S, J) projected predictions.
            weight: W (V, J).
            bias: b (V,).
            kept: (B, T, R) int64, of the S places.
            labels: (B, T, R) int64 token after each of them.
        """
        blank, label, norm = (frames.new_empty(kept.shape) for _ in range(3))
        ctx.logits = {}  # by the first frame
        is_kept = kept.numel() * len(bias) <= MOST_KEPT
        for part in _parts(kept, len(bias)):
            logits = F.linear(_hidden(frames, places, kept, part), weight, bias)
            norm[:, part] = logits.logsumexp(-1)
            blank[:, part] = logits[..., BLANK_ID] - norm[:, part]
            label[:, part] = logits.gather(3, labels[:, part, :, None]).squeeze(3) - norm[:, part]
            if is_kept:
                ctx.logits[part.start] = logits
        ctx.save_for_backward(frames, places, weight, bias, kept, labels, norm)
        return blank, label

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_blank: Tensor, of_label: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of frames, places, weight and bias from those (B, T, R) of blanks and labels."""
        frames, places, weight, bias, kept, labels, norm = ctx.saved_tensors
        of_frames, of_places = torch.empty_like(frames), torch.zeros_like(places)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        row = torch.arange(len(frames), device=frames.device)[:, None, None]
        for part in _parts(kept, len(bias)):
            hidden = _hidden(frames, places, kept, part)
            logits = ctx.logits.pop(part.start, None)  # a second backward pass finds none
            logits = F.linear(hidden, weight, bias) if logits is None else logits
            both = of_blank[:, part] + of_label[:, part]
            # of log softmax: what is asked for minus the probabilities
            of_logits = logits.sub_(norm[:, part, :, None]).exp_().mul_(-both[..., None])
            of_logits[..., BLANK_ID] += of_blank[:, part]
            of_logits.scatter_add_(3, labels[:, part, :, None], of_label[:, part, :, None])
            flat = of_logits.flatten(0, 2)
            of_bias += flat.sum(0)
            of_weight.addmm_(flat.mT, hidden.flatten(0, 2))
            of_hidden = (of_logits @ weight).mul_(hidden.square_().neg_().add_(1))
            of_frames[:, part] = of_hidden.sum(2)
            of_places.index_put_((row.expand_as(kept[:, part]), kept[:, part]), of_hidden, accumulate=True)
        return of_frames, of_places, of_weight, of_bias, None, None


def _parts(kept: Tensor, vocab_size: int) -> Iterator[slice]:
    """Yield slices of frames that cover all of them."""
    size, num_frames, num_kept = kept.shape
    step = max(1, MOST_LOGITS // (size * num_kept * vocab_size))
    return (slice(start, start + step) for start in range(0, num_frames, step))


def _hidden(frames: Tensor, places: Tensor, kept: Tensor, part: slice) -> Tensor:
    """Return tanh(frame + place) (B, frames of the part, R, J)."""
    row = torch.arange(len(frames), device=frames.device)[:, None, None]
    sums = places[row, kept[:, part]] + frames[:, part, None]
    if devices.on_accelerator(sums):
        return sums.tanh_()
    # a quarter of the time that tanh takes on a CPU (torch 2.13, AVX-512), and within 2e-7 of it
    return sums.mul_(2).sigmoid_().mul_(2).sub_(1)


class PathLosses(Function):
    """Negative log-probability of all paths together; its gradients are the probabilities of passing a place.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.4: forward and
        backward variables. Differs: places are computed one after another, each for all frames by one cumulative sum in
        the log domain, instead of frame by frame.
    """

    @staticmethod
    def forward(ctx: Any, blank: Tensor, label: Tensor, num_frames: Tensor, num_tokens: Tensor) -> tuple[Tensor, ...]:
        """Return losses (B,) in nats, and the probabilities (B, T, S) that a path takes a blank, and a label.

        Args:
            blank: (B, T, S) log-probabilities.
            label: (B, T, S) log-probabilities; the last place may hold anything.
            num_frames: (B,) int64, at least 1.
            num_tokens: (B,) int64.
        """
        log_likelihood, *taken = _forward_backward(blank, label, num_frames, num_tokens)
        ctx.save_for_backward(*taken)
        ctx.mark_non_differentiable(*taken)
        return -log_likelihood, *taken

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients (B, T, S) of both log-probabilities, from that (B,) of the losses."""
        takes_blank, takes_label = ctx.saved_tensors
        return -takes_blank * gradient[:, None, None], -takes_label * gradient[:, None, None], None, None


def _forward_backward(
    blank: Tensor, label: Tensor, num_frames: Tensor, num_tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities (B,), and the probabilities (B, T, S) of taking blanks and labels."""
    (size, longest, num_places), device = blank.shape, blank.device
    row, frame = torch.arange(size, device=device), torch.arange(longest, device=device)
    place = torch.arange(num_places, device=device)[:, None, None]
    is_last_frame = frame >= (num_frames - 1)[:, None]
    is_end = (frame == (num_frames - 1)[:, None]) & (num_tokens[:, None] == place)
    # (S, B, T), in double precision: sums over a thousand frames are subtracted from each other
    blanks, labels = (scores.permute(2, 0, 1).double() for scores in (blank, label))
    labels = labels.masked_fill((place >= num_tokens[:, None]) | (frame >= num_frames[:, None]), NEVER)
    before = blanks.masked_fill(is_last_frame, 0.0)
    before = before.cumsum(-1).sub_(before)  # log-probability of blanks alone from frame 0 to t

    reached = torch.empty_like(blanks)
    arriving = F.pad(blanks.new_zeros(size, 1), (0, longest - 1), value=NEVER)
    for s in range(num_places):
        # arriving at s costs the blanks from s to t: a cumulative sum in the log domain, all frames at once
        torch.add(torch.logcumsumexp(arriving - before[s], -1), before[s], out=reached[s])
        arriving = reached[s] + labels[s]
    total = reached[num_tokens, row, num_frames - 1] + blanks[num_tokens, row, num_frames - 1]

    # the same from the end, with the frames in reverse
    ends, labelled, passed = (x.flip(-1) for x in (blanks.masked_fill(~is_end, NEVER), labels, before))
    remaining = torch.empty_like(ends)
    following = blanks.new_full((size, longest), NEVER)
    for s in reversed(range(num_places)):
        leaving = torch.logaddexp(ends[s], labelled[s] + following)
        following = torch.sub(torch.logcumsumexp(leaving + passed[s], -1), passed[s], out=remaining[s])
    remaining = remaining.flip(-1)

    next_frame = F.pad(remaining[..., 1:], (0, 1)).masked_fill_(is_last_frame, NEVER).masked_fill_(is_end, 0.0)
    next_place = F.pad(remaining[1:], (0, 0, 0, 0, 0, 1), value=NEVER)
    # as a share of the total before exp: probabilities of whole paths alone would underflow
    passing = reached - total[:, None]
    taken = ((passing + scores).add_(then).exp_() for scores, then in ((blanks, next_frame), (labels, next_place)))
    takes_blank, takes_label = (x.masked_fill_(x < LEAST, 0.0).permute(1, 2, 0).to(blank.dtype) for x in taken)
    return total.to(blank.dtype), takes_blank, takes_label


def simple_scores(acoustic: Tensor, language: Tensor, labels: Tensor, lm_scale: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (B, T, S) of blanks and labels if the joiner only adds; no (B, T, S, V) exists.

    Args:
        acoustic: (B, T, V) logits of the frames.
        language: (B, S, V) logits of the places.
        labels: (B, S) int64 token after each place; the last one may be any.
        lm_scale: share in [0, 1) of the log-probabilities of ``language`` alone.

    Reference:
        Kuang et al. 2022, "Pruned RNN-T for fast, memory-efficient ASR training", arXiv:2206.13236, and k2's
        ``rnnt_loss_smoothed``. Differs: there is no share of ``acoustic`` alone, which icefall sets to 0.
    """
    most_acoustic, most_language = (logits.detach().amax(-1, keepdim=True) for logits in (acoustic, language))
    sums = (acoustic - most_acoustic).exp() @ (language - most_language).exp().mT
    # a sum of 0 would need logits that are 87 apart in all tokens
    norm = sums.clamp(min=torch.finfo(sums.dtype).tiny).log() + most_acoustic + most_language.mT
    of_labels = language.gather(2, labels[..., None]).mT
    label = acoustic.gather(2, labels[:, None].expand(-1, acoustic.shape[1], -1)) + of_labels - norm
    blank = acoustic[..., BLANK_ID, None] + language[:, None, :, BLANK_ID] - norm
    alone = language.logsumexp(-1)
    blank = torch.lerp(blank, (language[..., BLANK_ID] - alone)[:, None].expand_as(blank), lm_scale)
    label = torch.lerp(label, (of_labels - alone[:, None]).expand_as(label), lm_scale)
    return blank, label


def band_starts(passing: Tensor, num_frames: Tensor, num_tokens: Tensor, num_kept: int) -> Tensor:
    """Return the first (B, T) of the R places that are kept in each frame: those that paths pass most probably.

    It starts at 0, ends at the last R places, never falls, and rises by at most R - 1 from frame to frame, so that a
    path may always continue.

    Args:
        passing: (B, T, S) probability that a path passes.
        num_frames: (B,) int64.
        num_tokens: (B,) int64, at most (R - 1) · T.
        num_kept: R, at most S.
    """
    sums = F.pad(passing.cumsum(-1), (1, 0))
    starts = (sums[..., num_kept:] - sums[..., :-num_kept]).argmax(-1)
    frame = torch.arange(passing.shape[1], device=passing.device)
    highest, last = (num_kept - 1) * frame, (num_tokens + 1 - num_kept).clamp(min=0)[:, None]
    # a band that starts later than this cannot be reached from place 0, or lies after the last place
    starts = torch.minimum(torch.minimum(starts, highest), last)
    starts = torch.where(frame >= num_frames[:, None] - 1, last, starts)
    # at most every later start, so that the band never falls; then not below what it can rise by until a later one
    starts = starts.flip(1).cummin(1).values.flip(1)
    return (starts - highest).flip(1).cummax(1).values.flip(1) + highest


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
        self.matrix_blocks = {"output_linear.weight": {"why": "output layer: not for Muon"}}


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
        simple_loss_scale: Fraction = 0.5,
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
            output = {"why": "output layer: not for Muon"}
            self.matrix_blocks = {"simple_am_proj.weight": output, "simple_lm_proj.weight": output}

    def set_trained_seconds(self, audio_s: float) -> None:
        """Set the seconds of audio in all updates so far, which decide how much each part of the loss counts."""
        self.warmed_up = min(1.0, audio_s / self.warmup_s) if self.warmup_s else 1.0

    def loss(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Losses:
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
        acoustic = at_least_float32(self.simple_am_proj(encodings))
        language = at_least_float32(self.simple_lm_proj(predictions))
        scores = simple_scores(acoustic, language, labels, self.lm_scale)
        simple, takes_blank, takes_label = PathLosses.apply(*scores, num_frames, num_tokens)
        starts = band_starts(takes_blank + takes_label, num_frames, num_tokens, num_kept)
        kept = starts[..., None] + torch.arange(num_kept, device=starts.device)
        blank, label = self._joint_scores(encodings, predictions, labels, kept)
        # no label leads out of the band, and blanks outside of it lead to no label
        label = F.pad(label[..., :-1], (0, 1), value=NEVER)
        blanks = blank.new_zeros(scores[0].shape).scatter(2, kept, blank)
        labels = label.new_full(scores[0].shape, NEVER).scatter(2, kept, label)
        pruned = PathLosses.apply(blanks, labels, num_frames, num_tokens)[0]
        simple_scale = 1 - (1 - self.simple_loss_scale) * self.warmed_up
        pruned_scale = FIRST_PRUNED_SCALE + (1 - FIRST_PRUNED_SCALE) * self.warmed_up
        return simple_scale * simple + pruned_scale * pruned, {"simple": simple, "pruned": pruned}

    def _joint_scores(
        self, encodings: Tensor, predictions: Tensor, labels: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of blanks and labels at the places (B, T, R) that are kept."""
        joiner = self.joiner
        inputs = joiner.encoder_proj(encodings), joiner.decoder_proj(predictions), *joiner.output_linear.parameters()
        return JointScores.apply(*map(at_least_float32, inputs), kept, labels.gather(1, kept.flatten(1)).view_as(kept))

    def project(self, encodings: Tensor) -> Tensor:
        """Return the joiner's part (B, T, J) of encodings (B, T, D)."""
        return self.joiner.encoder_proj(encodings)

    def predict(self, context: Tensor) -> Tensor:
        """Return the joiner's part (N, J) of contexts (N, C), see ``Transduces``."""
        return self.joiner.decoder_proj(self.predictor(context)).squeeze(1)

    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """Return log-probabilities (…, V) in float32 of both parts (…, J), see ``Transduces``."""
        return F.log_softmax(self.joiner.output_linear((frames + predictions).tanh()).float(), dim=-1)


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
        simple_loss_scale: Fraction = 0.5,
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

    def loss(self, encodings: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Losses:
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
