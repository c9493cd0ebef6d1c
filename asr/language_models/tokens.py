"""Sentences → numbers of the tokens that a language model counts."""

from __future__ import annotations

from asr.language_models.ngrams import SPECIAL
from asr.text.tokenizer import Tokenizer
from asr.text.vocabulary import NUM_SPECIAL


class Tokens:
    """All tokens of a run are words of its language models.

    Args:
        tokenizer: of the run.

    Raises:
        ValueError: a token has the name of a mark of language models.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        pieces = tokenizer.pieces[NUM_SPECIAL:]
        if marks := set(SPECIAL) & set(pieces):
            raise ValueError(f"the tokenizer has a piece {min(marks)}, which language models need for themselves")
        self.words = [*SPECIAL, *pieces]

    def numbers(self, sentence: str) -> list[int]:
        """Return the numbers of the tokens of a sentence."""
        shift = len(SPECIAL) - NUM_SPECIAL
        return [token + shift for token in self._encode(sentence)]
