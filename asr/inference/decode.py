"""Batches of cuts → hypotheses, and the times of their words; transcripts → the times of theirs.

B batch, T frames, D width of encodings, U tokens, N words, P pauses.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.data.features import Features, Waveform
from asr.data.loading.loader import Batch, LoaderFactory, explaining_lost_workers
from asr.decoding.forced_alignment import Alignment, align
from asr.decoding.greedy import Decoder, Hypothesis
from asr.features.log_mel import find_pauses, frame_energies
from asr.models import devices
from asr.models.heads.protocols import FrameScores, Head, ScoresPaths
from asr.models.kernels import is_padding
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import UNKNOWN_SURFACE, Tokenizer, joined
from werdict.console import PlainProgress, bar_title
from werdict.error_files import ctm_lines, json_line, textgrid
from werdict.errors import RunFailed, explaining_out_of_memory
from werdict.files import write_new
from werdict.formatting import shortlist
from werdict.normalization import collapse_spaces
from werdict.scoring import SPACE, Unit, Utterance, Word
from werdict.scoring import words_of as spoken_units

LIMIT = "batch_duration_s (data.batch.max_duration_s in a run of asr-train)"
BYTES = "utf-8", "surrogateescape"  # see `joined`
UNUSUAL = re.compile(r'^\.|[\x00-\x1f\x7f%/\\:*?"<>|]')  # in names of files
MAX_NAME_BYTES = 200  # of a file; systems allow 255, with what is added

Result = TypeVar("Result")


@dataclass
class Processed(Generic[Result]):
    """What was found in a set.

    Attributes:
        results: in the order of the loader.
        unread: (id, reason) of each utterance that could not be read.
        audio_s: seconds of audio.
        seconds: wall-clock time for reading, features, model and search.
    """

    results: list[Result] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    audio_s: float = 0.0
    seconds: float = 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work per second of audio; None without audio."""
        return self.seconds / self.audio_s if self.audio_s else None


def process(
    recognizer: Recognizer,
    loaders: LoaderFactory,
    cuts: Collection[Any],
    doing: str,
    work: Callable[[Batch, Tensor, Tensor], Sequence[Result]],
) -> Processed[Result]:
    """Do some work with every batch of a set on the device of the recognizer, with a progress bar.

    Args:
        doing: what is done to which set, for the bar and for errors, such as "decoding test".
        work: batch, encodings (B, T, D) and their valid lengths (B,) → results of its utterances.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """
    device = next(recognizer.parameters()).device
    recognizer.eval()
    processed, start = Processed[Result](), time.monotonic()
    # on standard error, because standard output is for results
    bar = PlainProgress(stderr=True, transient=True)
    advice = f"when {doing}: lower {LIMIT}, or cut long audio into parts."
    with explaining_out_of_memory(lambda: advice), explaining_lost_workers(), bar as progress:
        task = progress.add_task(bar_title(doing), total=len(cuts))
        for batch in loaders.evaluation_loader(cuts):
            processed.unread.extend(batch.skipped)
            if len(batch):
                with explaining_out_of_memory(partial(_when_working, doing.split()[0], batch)), torch.inference_mode():
                    batch = batch.to(device)
                    processed.results.extend(work(batch, *recognizer(batch.features, batch.num_frames)))
            processed.audio_s += batch.audio_s
            progress.advance(task, len(batch) + len(batch.skipped))
    processed.seconds = time.monotonic() - start
    return processed


def _when_working(doing: str, batch: Batch) -> str:
    frames = devices.to_host(batch.num_frames)
    longest = batch.audio_s * max(frames) / max(1, sum(frames))
    return (
        f"when {doing} a batch of {len(batch)} utterances, {batch.audio_s:.1f} s of audio, the longest of "
        f"{longest:.1f} s: lower {LIMIT} below that sum, down to the longest; a longer utterance must be cut."
    )


class Emissions(NamedTuple):
    """The tokens of a text with their frames, each as in ``Alignment``."""

    tokens: Sequence[int]
    first: Sequence[int]
    last: Sequence[int]
    log_probs: Sequence[float]


def emissions_of(
    head: Head, encodings: Tensor, num_frames: Tensor, hypotheses: Sequence[Hypothesis]
) -> list[Emissions]:
    """Return where the tokens of one hypothesis of each utterance were spoken.

    A head with CTC aligns them. The tokens of other heads stand where the search found them, and so do those of a text
    that CTC cannot align, because a transducer or an attention decoder found more tokens than there are frames.

    Args:
        encodings: (B, T', D).
        num_frames: (B,) valid encodings.
    """
    searched = [
        Emissions(hypothesis.tokens, hypothesis.frames, hypothesis.frames, hypothesis.log_probs)
        for hypothesis in hypotheses
    ]
    if not isinstance(head, FrameScores):
        return searched
    texts = [torch.tensor(hypothesis.tokens, dtype=torch.int64, device=encodings.device) for hypothesis in hypotheses]
    tokens, num_tokens = pad_sequence(texts, batch_first=True), num_frames.new_tensor([len(text) for text in texts])
    alignment = align(head, encodings, num_frames, tokens, num_tokens)
    rows = zip(aligned(alignment, tokens, num_tokens), searched, devices.to_host(alignment.score), strict=True)
    return [by_ctc if score > -math.inf else by_search for by_ctc, by_search, score in rows]


def aligned(alignment: Alignment, tokens: Tensor, num_tokens: Tensor) -> list[Emissions]:
    """Return the emissions of texts, tokens (B, U) of which (B,) are valid."""
    table = zip(*map(devices.to_host, (tokens, *alignment[:3], num_tokens)), strict=True)
    return [Emissions(*(values[:length] for values in row)) for *row, length in table]


def words_of(
    emissions: Sequence[Emissions],
    surfaces: Sequence[str],
    batch: Batch,
    features: Features,
    subsampling_factor: int,
    center_frames: float = 3.5,
    unit: Unit = "word",
) -> list[tuple[Word, ...]]:
    """Return the words of each text in seconds: in order, within the audio, and none while another lasts.

    Tokens say little about where a word ends, because CTC and transducers may emit them anywhere in a word. So a word
    that has a pause beside it reaches to that pause, the longest one between its tokens and those of the neighbor. This
    needs features of audio; with others words have the times of their tokens. Words with tokens in one frame share it.

    The confidence of a word is the product of the probabilities of its tokens.

    Args:
        surfaces: text of each token.
        features: how those of the batch were made.
        subsampling_factor: frames of features for each of the emissions' frames.
        center_frames: where the first of the emissions' frames has its middle, in frames of features; see `Encoder`.
        unit: what counts as a word.
    """
    # an encoding stands for as many frames as lie between two encodings, in the middle of those that it sees
    begin, texts = center_frames - subsampling_factor / 2, []
    for emitted, padded, length in zip(emissions, batch.features, devices.to_host(batch.num_frames), strict=True):
        words = spelled((surfaces[token] for token in emitted.tokens), unit)
        # the tokens of an own decoder may go back in time
        inside = [(a := emitted.first[tokens[0]], max(a, emitted.last[tokens[-1]]) + 1) for _, tokens in words]
        frames = (begin + subsampling_factor * np.array(inside).reshape(-1, 2)).clip([0, 1], [length - 1, length])
        spans = _apart(np.maximum.accumulate(frames))
        # other features have no energy that shows where it is silent
        if features.from_audio:
            matrix = frame_energies(padded[:length]) if isinstance(features, Waveform) else padded[:length]
            _reach_pauses(spans, find_pauses(matrix), length)
        times_s = (np.array(spans).reshape(-1, 2) * features.frame_shift_s).round(3).tolist()
        # rounding may raise a sum of log-probabilities above 0
        scores = [min(0.0, sum(emitted.log_probs[token] for token in tokens)) for _, tokens in words]
        rows = zip(words, times_s, scores, strict=True)
        texts.append(tuple(Word(text, begin_s, end_s, math.exp(score)) for (text, _), (begin_s, end_s), score in rows))
    return texts


def spelled(surfaces: Iterable[str], unit: Unit = "word") -> list[tuple[str, list[int]]]:
    """Return each word of the texts of tokens, and the numbers of the tokens that its letters come from.

    A token may end one word and begin another; tokens of spaces belong to no word. With ``unit="character"`` each
    character but spaces is a word.
    """
    encoded = [surface.encode(*BYTES) for surface in surfaces]
    numbers = iter([number for number, part in enumerate(encoded) for _ in part])
    text = b"".join(encoded).decode(*BYTES)  # of several tokens, whose bytes are one letter together
    letters = [(letter, [*islice(numbers, len(letter.encode(*BYTES)))]) for letter in text]
    runs = groupby(letters, key=lambda pair: bool(collapse_spaces(pair[0])))
    parts = ([*run] for is_word, run in runs if is_word)
    words = parts if unit == "word" else ([pair] for part in parts for pair in part)
    return [
        (joined(letter for letter, _ in word), [*dict.fromkeys(chain.from_iterable(of for _, of in word))])
        for word in words
    ]


def _apart(spans: NDArray[np.float64]) -> list[list[float]]:
    """Divide what several words (N, 2) have in common equally among them, in their order."""
    divided = [[math.inf, -math.inf] for _ in spans]
    for low, high in pairwise(np.unique(spans)):
        inside = np.flatnonzero((spans[:, 0] <= low) & (low < spans[:, 1]))
        share = (high - low) / max(1, len(inside))
        for place, number in enumerate(inside):
            divided[number] = [min(divided[number][0], low + place * share), low + (place + 1) * share]
    return divided


def _reach_pauses(spans: list[list[float]], pauses: NDArray[np.int64], num_frames: int) -> None:
    """Move the ends of words to the longest pause between each two, before the first, and after the last."""
    before = [0.0, *(end for _, end in spans)]
    after = [*(begin for begin, _ in spans), float(num_frames)]
    for number, (low, high) in enumerate(zip(before, after, strict=True)):
        inside = pauses.clip(low, max(low, high))
        lengths = inside[:, 1] - inside[:, 0]
        if lengths.max(initial=0.0) > 0:
            begin, end = inside[lengths.argmax()].tolist()
            if number > 0:
                spans[number - 1][1] = begin
            if number < len(spans):
                spans[number][0] = end


class UnscoredText(RunFailed):
    """A text was chosen by scores that are not finite."""


def decode(
    recognizer: Recognizer,
    decoder: Decoder,
    tokenizer: Tokenizer,
    batch: Batch,
    encodings: Tensor,
    num_frames: Tensor,
    features: Features | None = None,
    unit: Unit = "word",
) -> list[Utterance]:
    """Return reference and hypothesis of every utterance of a batch.

    Args:
        encodings: (B, T, D).
        num_frames: (B,) valid encodings.
        features: how those of the batch were made; with them words are found in time, too.
        unit: what counts as a word there.

    Raises:
        UnscoredText: scores are not finite.
    """
    with torch.inference_mode():
        hypotheses = [best for best, *_ in decoder(recognizer.head, encodings, num_frames)]
        _refuse_unscored(batch.ids, encodings, num_frames, hypotheses)
        words: list[tuple[Word, ...]] = [()] * len(batch)
        if features is not None:
            emissions = emissions_of(recognizer.head, encodings, num_frames, hypotheses)
            frames = recognizer.subsampling_factor, recognizer.center_frames
            words = words_of(emissions, tokenizer.surfaces, batch, features, *frames, unit)
    texts = (tokenizer.decode(best.tokens) for best in hypotheses)
    rows = zip(batch.ids, batch.texts, texts, batch.speakers, words, strict=True)
    return [Utterance(*row) for row in rows]


def _refuse_unscored(
    ids: Sequence[str], encodings: Tensor, num_frames: Tensor, hypotheses: Sequence[Hypothesis]
) -> None:
    """Refuse texts that were chosen by scores that are not finite."""
    # padding may hold anything, NaN too
    padding = is_padding(num_frames, encodings.shape[1])
    are_finite = devices.to_host((encodings.isfinite().all(dim=-1) | padding).all(dim=-1))
    for name, is_finite, best in zip(ids, are_finite, hypotheses, strict=True):
        if not (is_finite and math.isfinite(best.score)):
            raise UnscoredText(
                f"{name}: the scores of the model are not finite: its weights are too large or damaged; choose another "
                "checkpoint"
            )


def decode_all(
    recognizer: Recognizer, decoder: Decoder, loaders: LoaderFactory, cuts: Collection[Any], name: str
) -> Processed[Utterance]:
    """Decode every cut of a set, see ``process``, with the times of words.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """

    def work(batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[Utterance]:
        encoded, timed = (batch, encodings, num_frames), (loaders.features, loaders.unit)
        return decode(recognizer, decoder, loaders.tokenizer, *encoded, *timed)

    return process(recognizer, loaders, cuts, f"decoding {name}", work)


@dataclass(frozen=True)
class AlignedText:
    """A transcript with the times of its words.

    Attributes:
        text: normalized.
        words: of the text, as it writes them.
        log_prob: of the most probable path; -inf if the text has more tokens than the encoder leaves frames.
        unknown: words with characters that the tokenizer does not know.
    """

    id: str
    text: str
    words: tuple[Word, ...]
    duration_s: float
    log_prob: float
    unknown: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether there are enough frames for the text; without them the times mean nothing."""
        return self.log_prob > -math.inf

    @property
    def why_not(self) -> str:
        """Why it does not fit."""
        if math.isnan(self.log_prob):
            return "the scores of the model are not finite"
        reason = (
            f"{self.duration_s:.2f} s are too short for its text: the encoder leaves fewer frames than it has tokens"
        )
        if self.unknown:
            return f"{reason}; characters that the run does not know are tokens too: {shortlist(self.unknown)}"
        return reason


def units_with_times(text: str, unit: Unit) -> list[str]:
    """Return what counts as the words of a text, without the spaces that count as characters: they have no times."""
    return [word for word in spoken_units(text, unit) if word != SPACE]


def align_all(
    recognizer: Recognizer, loaders: LoaderFactory, cuts: Collection[Any], name: str
) -> Processed[AlignedText]:
    """Align the transcripts of a set by a recognizer whose head scores frames or paths, see ``process``.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """

    head, unit = recognizer.head, loaders.unit
    assert isinstance(head, FrameScores | ScoresPaths)

    def work(batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[AlignedText]:
        alignment = align(head, encodings, num_frames, batch.tokens, batch.num_tokens)
        emissions = aligned(alignment, batch.tokens, batch.num_tokens)
        arguments = loaders.tokenizer.surfaces, batch, loaders.features
        words = words_of(emissions, *arguments, recognizer.subsampling_factor, recognizer.center_frames, unit)
        durations = devices.to_host(batch.num_frames * loaders.features.frame_shift_s)
        rows = zip(batch.ids, batch.texts, words, durations, devices.to_host(alignment.score), strict=True)
        return [_as_written(*row, unit) for row in rows]

    return process(recognizer, loaders, cuts, f"aligning {name}", work)


def _as_written(
    id: str, text: str, words: tuple[Word, ...], duration_s: float, log_prob: float, unit: Unit
) -> AlignedText:
    """Return the words of an utterance with the characters that tokens only mark as unknown."""
    written = units_with_times(text, unit)
    if len(written) != len(words):  # an unknown token may hold a space
        written = [word.text for word in words]
    unknown = tuple(surface for surface, word in zip(written, words, strict=True) if UNKNOWN_SURFACE in word.text)
    spoken = tuple(replace(word, text=surface) for surface, word in zip(written, words, strict=True))
    return AlignedText(id, text, spoken, duration_s, log_prob, unknown)


def write_alignments(folder: Path, name: str, texts: Sequence[AlignedText], formats: Sequence[str]) -> None:
    """Write the aligned texts of a set in each format: ``ctm``, ``json``, ``textgrid``."""
    if "ctm" in formats:
        write_new(folder / f"{name}.ctm", "".join(ctm_lines(utt.id, utt.words) for utt in texts))
    if "json" in formats:
        lines = (json_line(utt.id, utt.text, utt.words, log_prob=round(utt.log_prob, 3)) for utt in texts)
        write_new(folder / f"{name}.jsonl", "".join(lines))
    if "textgrid" in formats:
        (folder / name).mkdir()
        for utt in texts:
            write_new(folder / name / f"{_file_name(utt.id)}.TextGrid", textgrid(utt.duration_s, {"words": utt.words}))


def _file_name(id: str) -> str:
    """Return an id as a name that every system allows; a long one is cut, and ends with a digest of the whole."""
    plain = UNUSUAL.sub(lambda match: f"%{ord(match[0]):02X}", id)
    if len(plain.encode()) <= MAX_NAME_BYTES:
        return plain
    digest = hashlib.sha256(id.encode()).hexdigest()[:16]
    return f"{plain.encode()[: MAX_NAME_BYTES - 17].decode(errors='ignore')}-{digest}"
