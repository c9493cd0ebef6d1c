"""Tokenizer with one token per character (Unicode code point)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asr.text.normalize import SURROGATE, collapse_spaces, holds_space
from asr.text.vocabulary import (
    NUM_SPECIAL,
    SPACE_PIECE,
    SPECIAL_PIECES,
    UNKNOWN_ID,
    UNKNOWN_SURFACE,
    TokenizerState,
    without_blanks,
)


class CharacterTokenizer:
    """One token per code point; combining marks are tokens of their own, every unseen character is one ``<unk>``."""

    kind = "character"

    def __init__(self, pieces: Sequence[str]) -> None:
        """Build from the full list of pieces.

        Args:
            pieces: ``<blk>``, ``<unk>``, then one distinct character each; the space is written U+2581.

        Raises:
            ValueError: the list is not like that.
        """
        characters = list(pieces[NUM_SPECIAL:])
        if tuple(pieces[:NUM_SPECIAL]) != SPECIAL_PIECES:
            raise ValueError(f"the first pieces are {list(pieces[:NUM_SPECIAL])}, not {list(SPECIAL_PIECES)}")
        if wrong := [piece for piece in characters if not isinstance(piece, str) or len(piece) != 1]:
            raise ValueError(f"pieces {wrong[:5]!r} are not one character each")
        if halves := [piece for piece in characters if SURROGATE.match(piece)]:
            raise ValueError(f"pieces {halves[:5]!r} are halves of surrogate pairs, which are no characters")
        if spaces := [piece for piece in characters if holds_space(piece)]:
            raise ValueError(
                f"pieces {spaces[:5]!r} are whitespace or control characters, which no normalized text has; a space is "
                f"written {SPACE_PIECE} (U+2581)"
            )
        if len(set(characters)) != len(characters):
            raise ValueError("a piece occurs twice; every character needs one id only")
        self._pieces = tuple(pieces)
        self._id_of = {piece: number for number, piece in enumerate(characters, NUM_SPECIAL)}
        self.surfaces = (
            "",
            UNKNOWN_SURFACE,
            *(" " if piece == SPACE_PIECE else piece for piece in characters),
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids, blank and unknown included."""
        return len(self._pieces)

    @property
    def pieces(self) -> list[str]:
        """The piece of every id."""
        return list(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Return one id per character of normalized text."""
        marked = collapse_spaces(text).replace(" ", SPACE_PIECE)
        return [self._id_of.get(character, UNKNOWN_ID) for character in marked]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; blanks are dropped.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        return collapse_spaces("".join(self.surfaces[token] for token in without_blanks(ids, self.vocab_size)))

    def state(self) -> TokenizerState:
        """Return everything needed to rebuild the tokenizer, as JSON-able data."""
        return {"kind": self.kind, "pieces": self.pieces}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CharacterTokenizer:
        """Rebuild from ``state()``.

        Raises:
            ValueError: the state was damaged.
        """
        pieces = state.get("pieces")
        if not isinstance(pieces, list):
            raise ValueError(f"character tokenizer: its state holds no list 'pieces' but {type(pieces).__name__}")
        return cls(pieces)


@dataclass(frozen=True)
class CharacterTokenizerTrainer:
    """Collects the characters of the training text; it has no options."""

    def train(self, texts: Iterable[str]) -> CharacterTokenizer:
        """Return a tokenizer of all characters in normalized texts, ordered by code point.

        Raises:
            ValueError: the texts hold no character.
        """
        characters: set[str] = set()
        for text in texts:
            characters.update(collapse_spaces(text))
        if not characters:
            raise ValueError(
                "tokenizer: the training texts hold no character; check the transcripts of the train split"
            )
        space = [SPACE_PIECE] if " " in characters else []
        return CharacterTokenizer([*SPECIAL_PIECES, *space, *sorted(characters - {" "})])
