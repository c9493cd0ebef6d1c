"""Tokenizer with one token per character (Unicode code point)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asr.text.normalize import collapse_spaces
from asr.text.vocabulary import (
    NUM_SPECIAL,
    SPACE_PIECE,
    SPECIAL_PIECES,
    UNKNOWN_ID,
    UNKNOWN_SURFACE,
    TokenizerState,
    Vocabulary,
)


class CharacterTokenizer(Vocabulary):
    """One token per code point; combining marks are tokens of their own, every unseen character is one ``<unk>``."""

    kind = "character"

    def __init__(self, pieces: Sequence[str]) -> None:
        """Build from the full list of pieces.

        Args:
            pieces: ``<blk>``, ``<unk>``, then one distinct character each; the space is written U+2581.
        """
        characters = list(pieces[NUM_SPECIAL:])
        self.pieces = list(pieces)
        self._id_of = {piece: number for number, piece in enumerate(characters, NUM_SPECIAL)}
        self.surfaces = (
            "",
            UNKNOWN_SURFACE,
            *(" " if piece == SPACE_PIECE else piece for piece in characters),
        )

    def encode(self, text: str) -> list[int]:
        """Return one id per character of normalized text."""
        marked = collapse_spaces(text).replace(" ", SPACE_PIECE)
        return [self._id_of.get(character, UNKNOWN_ID) for character in marked]

    def state(self) -> TokenizerState:
        """Return everything needed to rebuild the tokenizer, as JSON-able data."""
        return {"kind": self.kind, "pieces": self.pieces}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CharacterTokenizer:
        """Rebuild from ``state()``."""
        return cls(state["pieces"])


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
