"""Batches of cuts → hypotheses, and the times of their words."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, islice, pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.data.features import Features, Waveform
from asr.data.loading.batch import Batch
from asr.data.loading.loader import DataModule, explaining_lost_workers
from asr.decoding.forced_alignment import Alignment, align
from asr.decoding.greedy import Decoder, Hypothesis
from asr.features.log_mel import find_pauses, frame_energies
from asr.models import devices
from asr.models.heads.protocols import FrameScores, Head
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import Tokenizer, joined
from werdict.console import PlainProgress, bar_title
from werdict.errors import RunFailed, explaining_out_of_memory
from werdict.normalization import collapse_spaces
from werdict.scoring import Unit, Utterance, Word

LIMIT = "batch_duration_s (data.batch.max_duration_s in a run of asr-train)"

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


def default_device() -> torch.device:
    """Return the GPU if torch can use one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def process(
    recognizer: Recognizer,
    data_module: DataModule,
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
        for batch in data_module.evaluation_loader(cuts):
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


BYTES = "utf-8", "surrogateescape"  # see `joined`


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
    found = [
        Emissions(hypothesis.tokens, hypothesis.frames, hypothesis.frames, hypothesis.log_probs)
        for hypothesis in hypotheses
    ]
    if not isinstance(head, FrameScores):
        return found
    texts = [torch.tensor(hypothesis.tokens, dtype=torch.int64, device=encodings.device) for hypothesis in hypotheses]
    tokens, num_tokens = pad_sequence(texts, batch_first=True), num_frames.new_tensor([len(text) for text in texts])
    alignment = align(head, encodings, num_frames, tokens, num_tokens)
    rows = zip(aligned(alignment, tokens, num_tokens), found, devices.to_host(alignment.score), strict=True)
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
    begin, found = center_frames - subsampling_factor / 2, []
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
        timed = zip(words, times_s, strict=True)
        found.append(tuple(Word(text, a, b, _product(emitted.log_probs, tokens)) for (text, tokens), (a, b) in timed))
    return found


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


def _product(log_probs: Sequence[float], tokens: Sequence[int]) -> float:
    # rounding may raise a sum of log-probabilities above 0
    return math.exp(min(0.0, sum(log_probs[token] for token in tokens)))


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
    is_padding = torch.arange(encodings.shape[1], device=encodings.device) >= num_frames[:, None]
    are_finite = devices.to_host((encodings.isfinite().all(dim=-1) | is_padding).all(dim=-1))
    for name, is_finite, best in zip(ids, are_finite, hypotheses, strict=True):
        if not (is_finite and math.isfinite(best.score)):
            raise UnscoredText(
                f"{name}: the scores of the model are not finite: its weights are too large or damaged; choose another "
                "checkpoint"
            )


def decode_all(
    recognizer: Recognizer, decoder: Decoder, data_module: DataModule, cuts: Collection[Any], name: str
) -> Processed[Utterance]:
    """Decode every cut of a set, see ``process``, with the times of words.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost.
    """

    def work(batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[Utterance]:
        encoded, timed = (batch, encodings, num_frames), (data_module.features, data_module.unit)
        return decode(recognizer, decoder, data_module.tokenizer, *encoded, *timed)

    return process(recognizer, data_module, cuts, f"decoding {name}", work)
