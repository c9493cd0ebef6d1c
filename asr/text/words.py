"""Words of a transcript, and the tokens that each is written with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from asr.text.normalize import collapse_spaces


@dataclass(frozen=True)
class Word:
    """A word with its place in the audio.

    Attributes:
        text: without spaces.
        start_s: seconds from the start of the utterance.
        end_s: seconds, at least ``start_s``.
        confidence: between 0 and 1, how sure the recognizer is of the word.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float


def spelled(surfaces: Iterable[str]) -> list[tuple[str, list[int]]]:
    """Return each word of the texts of tokens, and the numbers of the tokens that its letters come from.

    A token may end one word and begin another; tokens of spaces belong to no word.
    """
    letters = [(number, letter) for number, surface in enumerate(surfaces) for letter in surface]
    runs = groupby(letters, key=lambda pair: bool(collapse_spaces(pair[1])))
    return [_word(list(run)) for is_word, run in runs if is_word]


def _word(letters: list[tuple[int, str]]) -> tuple[str, list[int]]:
    numbers = [number for number, _ in groupby(letters, key=itemgetter(0))]
    return "".join(letter for _, letter in letters), numbers
