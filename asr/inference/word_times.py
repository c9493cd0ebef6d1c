"""Tokens in frames → words in seconds.

B batch, T frames of features, F mel bins, D width of encodings, U tokens, P pauses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.data.features import Features
from asr.data.loading.batch import Batch
from asr.decoding.forced_alignment import Alignment, align
from asr.decoding.hypothesis import Hypothesis
from asr.evaluation.wer import Word
from asr.features.pauses import find_pauses
from asr.models import devices
from asr.models.heads.protocols import FrameScores, Head
from asr.text.normalize import collapse_spaces
from asr.text.vocabulary import joined

CENTER_FRAMES = 3.5  # of the seven frames of features that the convolutions make the first encoding of


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

    A head with CTC aligns them; the tokens of other heads stand where the search found them.

    Args:
        encodings: (B, T', D).
        num_frames: (B,) valid encodings.
    """
    if not isinstance(head, FrameScores):
        return [
            Emissions(hypothesis.tokens, hypothesis.frames, hypothesis.frames, hypothesis.log_probs)
            for hypothesis in hypotheses
        ]
    texts = [torch.tensor(hypothesis.tokens, dtype=torch.int64, device=encodings.device) for hypothesis in hypotheses]
    tokens, num_tokens = pad_sequence(texts, batch_first=True), num_frames.new_tensor([len(text) for text in texts])
    return aligned(align(head, encodings, num_frames, tokens, num_tokens), tokens, num_tokens)


def aligned(alignment: Alignment, tokens: Tensor, num_tokens: Tensor) -> list[Emissions]:
    """Return the emissions of texts, tokens (B, U) of which (B,) are valid."""
    table = zip(*map(devices.to_host, (tokens, *alignment[:3], num_tokens)), strict=True)
    return [Emissions(*(values[:length] for values in row)) for *row, length in table]


def words_of(
    emissions: Sequence[Emissions], surfaces: Sequence[str], batch: Batch, features: Features, subsampling_factor: int
) -> list[tuple[Word, ...]]:
    """Return the words of each text in seconds.

    Tokens say little about where a word ends, because CTC and transducers may emit them anywhere in a word. So a word
    that has a pause beside it reaches to that pause, the longest one between its tokens and those of the neighbor. This
    needs features of audio; with others words have the times of their tokens.

    The confidence of a word is the product of the probabilities of its tokens.

    Args:
        surfaces: text of each token.
        features: how those of the batch were made.
        subsampling_factor: frames of features for each of the emissions' frames.
    """
    utterances = zip(emissions, batch.features, devices.to_host(batch.num_frames), strict=True)
    return [
        _words(emitted, surfaces, matrix[:length], features, subsampling_factor)
        for emitted, matrix, length in utterances
    ]


def _words(
    emissions: Emissions, surfaces: Sequence[str], matrix: Tensor, features: Features, subsampling_factor: int
) -> tuple[Word, ...]:
    words = spelled(surfaces[token] for token in emissions.tokens)
    inside = [(emissions.first[tokens[0]], emissions.last[tokens[-1]] + 1) for _, tokens in words]
    # an encoding stands for as many frames as lie between two encodings, in the middle of those that it sees
    first = CENTER_FRAMES - subsampling_factor / 2
    spans = _apart([[first + subsampling_factor * frame for frame in span] for span in inside])
    # other features have no energy that shows where it is silent
    if features.from_audio:
        _reach_pauses(spans, find_pauses(matrix), len(matrix))
    shift_s = features.frame_shift_s
    return tuple(
        Word(text, round(begin * shift_s, 3), round(end * shift_s, 3), _product(emissions.log_probs, tokens))
        for (text, tokens), (begin, end) in zip(words, spans, strict=True)
    )


def spelled(surfaces: Iterable[str]) -> list[tuple[str, list[int]]]:
    """Return each word of the texts of tokens, and the numbers of the tokens that its letters come from.

    A token may end one word and begin another; tokens of spaces belong to no word.
    """
    letters = [(number, letter) for number, surface in enumerate(surfaces) for letter in surface]
    runs = groupby(letters, key=lambda pair: bool(collapse_spaces(pair[1])))
    words = [list(run) for is_word, run in runs if is_word]
    return [(joined(letter for _, letter in word), [*dict.fromkeys(number for number, _ in word)]) for word in words]


def _product(log_probs: Sequence[float], tokens: Sequence[int]) -> float:
    # rounding may raise a sum of log-probabilities above 0
    return math.exp(min(0.0, sum(log_probs[token] for token in tokens)))


def _apart(spans: list[list[float]]) -> list[list[float]]:
    """Divide the frames of neighbors that begin in the same one among them."""
    divided = []
    for begin, group in groupby(spans, key=itemgetter(0)):
        same = list(group)
        bounds = np.linspace(begin, same[-1][1], len(same) + 1).tolist()
        divided += [list(span) for span in pairwise(bounds)]
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
