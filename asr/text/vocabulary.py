"""What every vocabulary has in common: the two special pieces and the check of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asr.text.normalize import SURROGATE, collapse_spaces

BLANK_ID = 0
UNKNOWN_ID = 1
SPECIAL_PIECES = ("<blk>", "<unk>")
NUM_SPECIAL = len(SPECIAL_PIECES)
SPACE_PIECE = "\u2581"  # sentencepiece's way of writing a space
UNKNOWN_SURFACE = "\u2047"  # what a reader sees of an unknown token: ⁇

TokenizerState = dict[str, str | int | list[str]]


class Vocabulary:
    """The tokens of a tokenizer.

    Attributes:
        pieces: of every id; U+2581 stands for a space.
        surfaces: text of every id by itself.
    """

    pieces: list[str]
    surfaces: Sequence[str]

    @property
    def vocab_size(self) -> int:
        """Number of ids, blank and unknown included."""
        return len(self.pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; blanks are dropped.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        if wrong := [int(token) for token in ids if not 0 <= token < self.vocab_size]:
            raise ValueError(
                f"token ids {wrong[:5]} lie outside the vocabulary of {self.vocab_size} (0 to {self.vocab_size - 1}); "
                "decode with the tokenizer that the model was trained with"
            )
        return collapse_spaces(joined(self.surfaces[token] for token in ids if token != BLANK_ID))


def joined(surfaces: Iterable[str]) -> str:
    """Return the text of tokens by their surfaces, in which bytes of UTF-8 are written as surrogates (PEP 383).

    Bytes that are no character read U+FFFD each, as in sentencepiece.
    """
    text = "".join(surfaces)
    if not SURROGATE.search(text):
        return text
    return SURROGATE.sub("\ufffd", text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"))
