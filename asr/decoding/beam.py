"""Beam searches: prefixes of CTC, their texts ranked again by an attention decoder, texts of transducers.

B batch, T frames, D width, V vocabulary, K prefixes or texts of an utterance, C tokens that each may grow by, J width
of the joiner, N texts of all utterances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.decoding.greedy import Hypothesis, ranked
from asr.decoding.scorers import Scorer, WeightedSum, read_hotwords, read_language_model, select
from asr.models import devices
from asr.models.heads.protocols import FrameScores, ScoresFramesAndTexts, Transduces
from asr.models.kernels import is_padding
from asr.ranges import Fraction
from asr.text.tokenizer import BLANK_ID, Tokenizer
from werdict.files import named_path

NEVER = -math.inf
NO_RECORD, NEW_RECORD = -1, -2
NO_PREFIX, NO_PARENT, EMPTY_PREFIX = 0, 1, 2  # in place of a hash
# the multipliers of splitmix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators"), signed
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
FILE_OPTIONS = ("lm", "lodr", "hotwords")  # of a search, which name files
# values of weights that are worth trying
TRIED: Mapping[str, Sequence[float]] = {
    "lm_weight": (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0),
    "lodr_weight": (0.0, 0.1, 0.2, 0.4),
    "token_bonus": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
    "ctc_weight": (0.1, 0.3, 0.5, 0.7, 0.9),
}

SkipThreshold = Annotated[float, Field(ge=0.5, le=1)]


def hashed(before: Tensor, tokens: Tensor) -> Tensor:
    """Return the hashes of prefixes extended by a token, from their hashes and ``tokens``, all int64 (…).

    Two prefixes that differ share one with a chance of 2⁻⁶⁴. A search compares K² pairs in a frame: with 8 prefixes
    and 10,000 frames that is a chance of 4 · 10⁻¹⁴ that any pair is merged by mistake.
    """
    mixed = before + tokens * GAMMA
    # shifts copy the sign of int64, which the masks remove
    mixed = (mixed ^ (mixed >> 30 & 2**34 - 1)) * FIRST
    mixed = (mixed ^ (mixed >> 27 & 2**37 - 1)) * SECOND
    return mixed ^ (mixed >> 31 & 2**33 - 1)


class Prefixes(NamedTuple):
    """Beginnings of texts, all different; those of log-probability -inf stand for none.

    A record says where a token was emitted: its number is step · K + slot. The search keeps ``last`` and
    ``parent_record`` of all steps, so that the tokens of a prefix can be read from its last record to its first.

    Attributes:
        blank: (B, K) float64, log-probability of the paths that end in a blank.
        nonblank: (B, K) float64, of those that end in the last token.
        added: (B, K) float64, what scorers have added.
        last: (B, K) int64 last token; blank if there is none.
        hash: (B, K) int64, of the tokens.
        parent_hash: (B, K) int64, of the tokens without the last.
        peak: (B, K) float64, the highest that ``nonblank`` has been.
        record: (B, K) int64, of the last token, where that was.
        parent_record: (B, K) int64, of the token before it, in the paths of that moment.
    """

    blank: Tensor
    nonblank: Tensor
    added: Tensor
    last: Tensor
    hash: Tensor
    parent_hash: Tensor
    peak: Tensor
    record: Tensor
    parent_record: Tensor

    @classmethod
    def empty(cls, batch_size: int, beam_size: int, device: torch.device) -> Prefixes:
        """Return the empty prefix in the first slot, and none in the others."""

        def filled(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((batch_size, beam_size), value, dtype=dtype, device=device)

        blank, hashes = filled(NEVER, torch.float64), filled(NO_PREFIX, torch.int64)
        blank[:, 0], hashes[:, 0] = 0.0, EMPTY_PREFIX
        nothing, none = filled(NEVER, torch.float64), filled(NO_RECORD, torch.int64)
        parents, last = filled(NO_PARENT, torch.int64), filled(BLANK_ID, torch.int64)
        return cls(blank, nothing, torch.zeros_like(blank), last, hashes, parents, nothing, none, none)

    def log_probs(self) -> Tensor:
        """Return the log-probability (B, K) of each, summed over its paths."""
        return torch.logaddexp(self.blank, self.nonblank)

    def after_blanks(self, where: Tensor) -> Prefixes:
        """Return what is left after blanks alone, in the utterances (B,) in which there were any."""
        where = where.unsqueeze(1)
        # all paths end in a blank now: a token may follow itself
        blank = torch.where(where, self.log_probs(), self.blank)
        return self._replace(blank=blank, nonblank=self.nonblank.masked_fill(where, NEVER))

    def extended(self, frame: Tensor, best: Tensor, tokens: Tensor) -> tuple[Prefixes, Tensor]:
        """Return the same prefixes after a frame, and the log-probabilities (B, K, C) of those one token longer.

        Args:
            frame: (B, V) log-probabilities.
            best: (B, C) some of them, without the blank's.
            tokens: (B, C) that these belong to.
        """
        total = self.log_probs()
        again = frame.gather(1, self.last)
        # [b, k, j]: j is k and one token more. All prefixes differ, so that there is at most one such k.
        is_parent = self.hash.unsqueeze(2) == self.parent_hash.unsqueeze(1)
        parent = is_parent.int().argmax(dim=1)
        # a token after itself needs a blank between
        doubled = self.last.gather(1, parent) == self.last
        before = torch.where(doubled, self.blank.gather(1, parent), total.gather(1, parent))
        emitted = (before + again).masked_fill(~is_parent.any(dim=1), NEVER)
        held = self.nonblank + again
        nonblank = torch.logaddexp(held, emitted)
        moved = nonblank > self.peak
        record_before = torch.where(emitted > held, self.record.gather(1, parent), self.parent_record)
        stayed = self._replace(
            blank=total + frame[:, BLANK_ID].unsqueeze(1),
            nonblank=nonblank,
            peak=nonblank.maximum(self.peak),
            record=self.record.masked_fill(moved, NEW_RECORD),
            parent_record=torch.where(moved, record_before, self.parent_record),
        )
        repeats = tokens.unsqueeze(1) == self.last.unsqueeze(2)
        grown = torch.where(repeats, self.blank.unsqueeze(2), total.unsqueeze(2)) + best.unsqueeze(1)
        # these were reached from their parents above: twice in the beam, their paths would be counted twice later
        duplicates = is_parent.float() @ repeats.float() > 0
        return stayed, grown.masked_fill(duplicates, NEVER)

    def chosen(
        self, stayed: Prefixes, grown: Tensor, added: Tensor, tokens: Tensor, step: int
    ) -> tuple[Prefixes, Tensor, Tensor]:
        """Return the best of the prefixes after a frame.

        Args:
            stayed: from ``extended``.
            grown: (B, K, C) from ``extended``.
            added: (B, K, C) by scorers, to those that have grown.
            tokens: (B, C).
            step: number of the frame.

        Returns:
            The prefixes, best first; which prefixes before the frame they come from, (B, K) int64; and the token that
            was added to these, (B, K) int64, blank if none was.
        """
        (beam_size, num_tokens), flat = grown.shape[1:], grown.flatten(1)
        scores = torch.cat((stayed.log_probs() + stayed.added, flat + added.flatten(1)), dim=1)
        # prefixes as they were and longer ones compete for the same slots
        best, index = scores.topk(beam_size, dim=1)
        is_longer, column = index >= beam_size, (index - beam_size).clamp(min=0)
        slots = torch.where(is_longer, column // num_tokens, index)
        appended = tokens.gather(1, column % num_tokens).masked_fill(~is_longer, BLANK_ID)
        same = Prefixes(*(field.gather(1, slots) for field in stayed))
        nonblank = flat.gather(1, column)
        number = step * beam_size + torch.arange(beam_size, device=slots.device)
        # what cannot be must never be taken for another prefix
        impossible = best == NEVER
        prefixes = Prefixes(
            blank=same.blank.masked_fill(is_longer, NEVER),
            nonblank=torch.where(is_longer, nonblank, same.nonblank),
            added=torch.where(is_longer, added.flatten(1).gather(1, column), same.added),
            last=torch.where(is_longer, appended, same.last),
            hash=torch.where(is_longer, hashed(same.hash, appended), same.hash).masked_fill(impossible, NO_PREFIX),
            parent_hash=torch.where(is_longer, same.hash, same.parent_hash).masked_fill(impossible, NO_PARENT),
            peak=torch.where(is_longer, nonblank, same.peak),
            record=torch.where(is_longer | (same.record == NEW_RECORD), number, same.record),
            parent_record=torch.where(is_longer, self.record.gather(1, slots), same.parent_record),
        )
        return prefixes, slots, appended


def _searched(log_probs: Tensor, num_frames: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the frames that are searched, T' of T: those whose blank has a log-probability of at most the threshold.

    Args:
        log_probs: (B, T, V).
        num_frames: (B,) valid frames.

    Returns:
        Log-probabilities (B, T', V) in float64, padding being certainly blank; whether frames were skipped just before
        each, (B, T') bool; the log-probability (B,) of all blanks that were skipped; and the numbers (B, T') int64 of
        the frames among all.
    """
    valid = ~is_padding(num_frames, log_probs.shape[1])
    blanks = log_probs[..., BLANK_ID]
    skipped = valid & (blanks > threshold)
    kept = valid & ~skipped
    num_kept = kept.sum(dim=1)
    # stable: the frames that are kept stay in the order of time
    index = kept.int().argsort(dim=1, descending=True, stable=True)[:, : devices.to_host(num_kept.max())]
    # in 64 bits: after a thousand frames 32 give different prefixes the same score, and the order of topk decides
    searched = log_probs.gather(1, index.unsqueeze(2).expand(-1, -1, log_probs.shape[2])).double()
    padding = is_padding(num_kept, index.shape[1])
    # shorter utterances go on with certain blanks: they change neither prefixes nor scores
    searched.masked_fill_(padding.unsqueeze(2), NEVER)[..., BLANK_ID].masked_fill_(padding, 0.0)
    after_blanks = skipped.roll(1, dims=1).gather(1, index)  # before the first frame it changes nothing
    return searched, after_blanks, blanks.double().where(skipped, 0.0).sum(dim=1), index


def _hypotheses(
    scores: Tensor, records: Tensor, emissions: Sequence[tuple[Tensor, Tensor, Tensor]], frames: Tensor
) -> list[list[Hypothesis]]:
    """Return the texts with a score above -inf, at least one of an utterance, best first.

    Args:
        scores: (B, K).
        records: (B, K) of their last tokens, see `Prefixes`.
        emissions: of each step the last tokens (B, K), the records before these, and their log-probabilities.
        frames: (B, steps) int64, in which the steps are.
    """
    stacked: Any = [devices.to_host(torch.stack(field)) for field in zip(*emissions, strict=True)]
    last, before, probabilities = stacked or ([], [], [])
    beams = []
    for row, (row_scores, row_records, numbers) in enumerate(
        zip(*map(devices.to_host, (scores, records, frames)), strict=True)
    ):
        beam = []
        for score, record in zip(row_scores, row_records, strict=True):
            places = []
            while record >= 0:
                step, slot = divmod(record, scores.shape[1])
                places.append((step, slot))
                record = before[step][row][slot]
            places.reverse()
            tokens = [last[step][row][slot] for step, slot in places]
            log_probs = [probabilities[step][row][slot] for step, slot in places]
            beam.append(Hypothesis(tokens, [numbers[step] for step, _ in places], log_probs, score))
        beam = ranked(beam)
        beams.append([hypothesis for hypothesis in beam if hypothesis.score > NEVER] or beam[:1])
    return beams


@dataclass(eq=False, kw_only=True)
class ShallowFusion:
    """A search with language models and hotwords, which add to scores token by token.

    Attributes:
        lm: ARPA file with a language model over tokens, or over words.
        lm_weight: of its log-probabilities; the others have weight 1.
        lodr: ARPA file with a model of low order of the transcripts that the run was trained on; its log-probabilities
            are subtracted, in place of what a transducer has itself learned of them.
        lodr_weight: of these.
        token_bonus: added for each token, against the language model's liking for short texts.
        hotwords: text file with phrases, as in ``read_phrases``.
        hotword_boost: added for each token of a phrase whose line has no boost.
        scorer: adds to the scores of hypotheses; before ``load_scorers`` is called, only the bonus.

    Raises:
        ValueError: there is no such file.

    Reference:
        Zheng et al. 2022, "An Empirical Study of Language Model Integration for Transducer based Speech Recognition",
        arXiv:2203.16776, for the model of low order that is subtracted (LODR).
    """

    lm: str | None = None
    lm_weight: NonNegativeFloat = 0.3
    lodr: str | None = None
    lodr_weight: NonNegativeFloat = 0.1
    token_bonus: float = 0.0
    hotwords: str | None = None
    hotword_boost: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        names = {option: getattr(self, option) for option in FILE_OPTIONS}
        self._files = {option: named_path(name) for option, name in names.items() if name is not None}
        for option, path in self._files.items():  # what is in them is read later
            if not path.is_file():
                raise ValueError(f"{option}: {str(path)!r} is not a file that exists")
        self._loaded: dict[str, tuple[Scorer, str]] = {}
        self.weigh()

    def load_scorers(self, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> None:
        """Read the files, for the tokens of a run.

        Args:
            normalize: text → text as in the transcripts of the run.

        Raises:
            ValueError: a file is malformed, or has nothing to do with the tokens.
        """
        for option, path in self._files.items():
            if option == "hotwords":
                self._loaded[option] = read_hotwords(path, self.hotword_boost, tokenizer, normalize)
            else:
                self._loaded[option] = read_language_model(option, path, tokenizer, normalize)
        self.weigh()

    def weigh(self, **weights: float) -> None:
        """Change some of the weights."""
        vars(self).update(weights)
        signed = {"lm": self.lm_weight, "lodr": -self.lodr_weight, "hotwords": 1.0}
        scorers = [(scorer, signed[option]) for option, (scorer, _) in self._loaded.items() if signed[option]]
        self.scorer: Scorer = WeightedSum(scorers, self.token_bonus)

    @property
    def tunable(self) -> Mapping[str, Sequence[float]]:
        """Return the weights of the language models that were loaded, and the bonus that goes with them."""
        names = [f"{option}_weight" for option in ("lm", "lodr") if option in self._loaded]
        return {name: TRIED[name] for name in (*names, "token_bonus")} if names else {}

    @property
    def notes(self) -> list[str]:
        """Return a line about each file."""
        ends = {
            "lm": f"; weight {self.lm_weight:g}, bonus per token {self.token_bonus:g}",
            "lodr": f", subtracted; weight {self.lodr_weight:g}",
        }
        return [f"{description}{ends.get(option, '')}" for option, (_, description) in self._loaded.items()]


@dataclass(eq=False)
class CtcBeam(ShallowFusion):
    """Keeps the best prefixes after each frame; a language model and hotwords add to them with every token.

    Attributes:
        beam_size: prefixes that are kept after each frame, K; as many hypotheses are returned.
        beam_size_token: the most probable tokens of a frame, C, that a prefix may grow by.
        blank_skip_threshold: frames whose blank is more probable are taken for blanks, in no time; 1 skips none.

    Reference:
        Hannun et al. 2014, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
        DNNs", arXiv:1408.2873, algorithm 1.
        Differs: what is added comes with tokens, not with words; only the best tokens of a frame are tried.
    """

    needs = FrameScores

    beam_size: PositiveInt = 8
    beam_size_token: PositiveInt = 8
    blank_skip_threshold: SkipThreshold = 0.999

    def __call__(self, head: FrameScores, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the best texts of each utterance; see ``Decoder``.

        A token stands in the frame that most probably ends its prefix, summed over paths.

        Args:
            head: scores frames.
            encodings: (B, T, D).
            num_frames: (B,) valid frames.
        """
        threshold = math.log(self.blank_skip_threshold)
        log_probs, after_blanks, skipped, numbers = _searched(head.frame_log_probs(encodings), num_frames, threshold)
        num_tokens = min(self.beam_size_token, log_probs.shape[2] - 1)
        # the first column is the blank's
        best, tokens = log_probs[..., 1:].topk(num_tokens, dim=2)
        tokens += 1
        prefixes = Prefixes.empty(len(tokens), self.beam_size, tokens.device)
        state = select(self.scorer.start(len(tokens), tokens.device), torch.zeros_like(prefixes.last))
        emissions = []
        for t in range(tokens.shape[1]):
            prefixes = prefixes.after_blanks(after_blanks[:, t])
            stayed, grown = prefixes.extended(log_probs[:, t], best[:, t], tokens[:, t])
            bonus = self.scorer.score(state, tokens[:, t].unsqueeze(1).expand_as(grown))
            added = prefixes.added.unsqueeze(2) + bonus
            prefixes, slots, appended = prefixes.chosen(stayed, grown, added, tokens[:, t], t)
            state = self.scorer.advance(select(state, slots), appended)
            last = prefixes.last
            emissions.append((last, prefixes.parent_record, log_probs[:, t].gather(1, last)))
        scores = prefixes.log_probs() + prefixes.added + self.scorer.end(state) + skipped.unsqueeze(1)
        return _hypotheses(scores, prefixes.record, emissions, numbers)


@dataclass(eq=False, kw_only=True)
class AttentionRescoring(CtcBeam):
    """Scores the texts of a CTC prefix beam by ``ctc_weight`` · CTC + (1 − ``ctc_weight``) · attention.

    Attributes:
        ctc_weight: of the score of the beam, with all that is added to it; in [0, 1].

    Reference:
        Yao et al. 2021, "WeNet: Production oriented streaming and non-streaming end-to-end speech recognition toolkit",
        arXiv:2102.01547, for two passes. Differs: both weights add up to 1.
    """

    needs = ScoresFramesAndTexts

    ctc_weight: Fraction = 0.3

    @property
    def notes(self) -> list[str]:
        """Return what is loaded into the beam, and the weight of its scores."""
        return [*super().notes, f"weight of CTC {self.ctc_weight:g}, of attention {1 - self.ctc_weight:g}"]

    @property
    def tunable(self) -> Mapping[str, Sequence[float]]:
        """Return the weights of the beam, and that of its scores."""
        return {**super().tunable, "ctc_weight": TRIED["ctc_weight"]}

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
        texts = [torch.tensor(hypothesis.tokens, dtype=torch.int64) for beam in beams for hypothesis in beam]
        rows = torch.tensor([row for row, beam in enumerate(beams) for _ in beam], device=encodings.device)
        tokens = pad_sequence(texts, batch_first=True).to(encodings.device)
        num_tokens = torch.tensor([*map(len, texts)], device=encodings.device)
        scores = head.text_log_probs(encodings[rows], num_frames[rows], tokens, num_tokens)
        attention, share = iter(devices.to_host(scores)), self.ctc_weight
        return [
            ranked(replace(best, score=share * best.score + (1 - share) * next(attention)) for best in beam)
            for beam in beams
        ]


@dataclass(eq=False)
class TransducerBeam(ShallowFusion):
    """Keeps the best texts after each frame, each summed over its alignments.

    A language model and hotwords add to them with every token.

    Attributes:
        beam_size: texts that are kept after each frame, K; as many hypotheses are returned.
        beam_size_token: the most probable tokens, C, that a text may grow by in a frame.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", arXiv:1211.3711, section 2.6.
        Differs: a frame has at most one token, as in icefall's ``modified_beam_search``, so that all hypotheses of a
        batch grow together; only the best tokens after each are tried.
    """

    needs = Transduces

    beam_size: PositiveInt = 4
    beam_size_token: PositiveInt = 8

    def __call__(self, head: Transduces, encodings: Tensor, num_frames: Tensor) -> list[list[Hypothesis]]:
        """Return the best texts of each utterance; see ``Decoder``. A token stands in the frame that most of the
        probability of its text comes through.

        Args:
            head: predicts tokens.
            encodings: (B, T, D).
            num_frames: (B,) valid frames.
        """
        frames, size = head.project(encodings), len(encodings)
        beam = _Beam.start(head, self.scorer, size, self.beam_size, encodings.device)
        emissions = []
        numbers = torch.arange(devices.to_host(num_frames.max()))
        for t in numbers.tolist():
            log_probs = head.join(frames[:, t].unsqueeze(1), beam.predictions).double()
            num_tokens = min(self.beam_size_token, log_probs.shape[2] - 1)
            # the first column is the blank's
            best, tokens = log_probs[..., 1:].topk(num_tokens, dim=2)
            tokens += 1
            # an utterance that has ended takes blanks at no cost, so that the others can go on
            is_over = (t >= num_frames).unsqueeze(1)
            stayed = beam.log_probs + log_probs[..., BLANK_ID].masked_fill(is_over, 0.0)
            grown = (beam.log_probs.unsqueeze(2) + best).masked_fill(is_over.unsqueeze(2), NEVER)
            beam, emitted = beam.after(stayed, grown, tokens, best, t, head, self.scorer)
            emissions.append(emitted)
        scores = beam.log_probs + beam.added + self.scorer.end(beam.state)
        return _hypotheses(scores, beam.record, emissions, numbers.expand(size, -1))


class _Beam(NamedTuple):
    """Texts, all different; those of log-probability -inf stand for none.

    Attributes:
        log_probs: (B, K) float64, summed over alignments.
        added: (B, K) float64, what scorers have added.
        context: (B, K, tokens of context) int64.
        predictions: (B, K, J).
        hashes: (B, K) int64, of the tokens.
        record: (B, K) int64, of the last token, see `Prefixes`.
    """

    log_probs: Tensor
    added: Tensor
    context: Tensor
    predictions: Tensor
    hashes: Tensor
    record: Tensor
    state: Any

    @classmethod
    def start(cls, head: Transduces, scorer: Scorer, size: int, beam_size: int, device: torch.device) -> _Beam:
        """Return the empty text in the first slot, and none in the others."""
        log_probs = torch.full((size, beam_size), NEVER, dtype=torch.float64, device=device)
        log_probs[:, 0] = 0.0
        context = torch.full((size, beam_size, head.context_size), -1, device=device)
        context[..., -1] = BLANK_ID
        # a copy: rows of an expanded tensor share memory, and each row is written to later
        predictions = head.predict(context[:1, 0]).expand(size, beam_size, -1).clone()
        hashes = torch.zeros_like(context[..., 0])
        state = select(scorer.start(size, device), hashes)
        record = torch.full_like(hashes, NO_RECORD)
        return cls(log_probs, torch.zeros_like(log_probs), context, predictions, hashes, record, state)

    def merged(self, stayed: Tensor, grown: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add a text that has grown to the same text that stayed; all texts before the frame differ.

        Args:
            stayed: (B, K) log-probabilities of the texts as they were.
            grown: (B, K, C) of those one token longer.
            tokens: (B, K, C) that these have grown by.

        Returns:
            Log-probabilities (B, K) of the texts as they were; (B, K, C) of those one token longer, -inf where one of
            the others is the same text; and where the best alignment of a text that stayed comes from, (B, K) int64:
            below K a text that emitted a blank, from K on number K + k · C + c of those that have grown.
        """
        hashes, flat = self.hashes, grown.flatten(1)
        beam_size = hashes.shape[1]
        same = hashed(hashes.unsqueeze(2), tokens).flatten(1).unsqueeze(2) == hashes.unsqueeze(1)  # (B, K · C, K)
        # an empty slot has a log-probability of -inf, and equals no text
        same &= ((flat > NEVER).unsqueeze(2)) & (stayed > NEVER).unsqueeze(1)
        other = flat.unsqueeze(2).masked_fill(~same, NEVER)
        best, column = other.max(dim=1)
        source = torch.where(best > stayed, beam_size + column, torch.arange(beam_size, device=hashes.device))
        unmerged = flat.masked_fill(same.any(dim=2), NEVER).view_as(grown)
        return torch.logaddexp(stayed, best), unmerged, source

    def after(
        self, stayed: Tensor, grown: Tensor, tokens: Tensor, best: Tensor, step: int, head: Transduces, scorer: Scorer
    ) -> tuple[_Beam, tuple[Tensor, Tensor, Tensor]]:
        """Return the best texts after a frame, and what they emitted, see `_hypotheses`.

        Args:
            stayed: as in `merged`.
            grown: as in `merged`.
            tokens: as in `merged`.
            best: (B, K, C) log-probabilities of these tokens.
            step: number of the frame.
        """
        beam_size, num_tokens = tokens.shape[1:]
        stayed, grown, best_source = self.merged(stayed, grown, tokens)
        added = self.added.unsqueeze(2) + scorer.score(self.state, tokens)
        log_probs = torch.cat((stayed, grown.flatten(1)), dim=1)
        sums = torch.cat((self.added, added.flatten(1)), dim=1)
        index = (log_probs + sums).topk(beam_size, dim=1).indices
        source = torch.where(index < beam_size, best_source.gather(1, index.clamp(max=beam_size - 1)), index)
        column = (source - beam_size).clamp(min=0)
        is_longer = source >= beam_size
        slots = torch.where(is_longer, column // num_tokens, source)
        appended = tokens.flatten(1).gather(1, column).masked_fill(~is_longer, BLANK_ID)
        context, predictions = select((self.context, self.predictions), slots)
        # only these have a new context
        rows = is_longer.nonzero(as_tuple=True)
        if len(rows[0]):
            context[rows] = torch.cat((context[rows][:, 1:], appended[rows].unsqueeze(1)), dim=1)
            predictions[rows] = head.predict(context[rows])
        hashes, before = self.hashes.gather(1, slots), self.record.gather(1, slots)
        number = step * beam_size + torch.arange(beam_size, device=slots.device)
        beam = _Beam(
            log_probs.gather(1, index),
            sums.gather(1, index),
            context,
            predictions,
            torch.where(is_longer, hashed(hashes, appended), hashes),
            torch.where(is_longer, number, before),
            scorer.advance(select(self.state, slots), appended),
        )
        return beam, (appended, before, best.flatten(1).gather(1, column))
