"""What the rest of the program knows of a tokenizer, and how one comes back from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from asr.text.character import CharacterTokenizer
from asr.text.subword import SubwordTokenizer
from asr.text.vocabulary import TokenizerState


class Tokenizer(Protocol):
    """Turns normalized text into token ids and back: ``decode(encode(text)) == text`` for characters it has seen."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; id 0 is the blank ``<blk>``, id 1 the unknown ``<unk>``."""
        ...

    @property
    def pieces(self) -> list[str]:
        """The piece of every id; U+2581 stands for a space."""
        ...

    @property
    def surfaces(self) -> Sequence[str]:
        """The text of every id by itself; joined, with runs of spaces as one, they are what ``decode`` returns."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return token ids, never the blank; text without characters has none."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return text; blanks are dropped, ``<unk>`` reads ⁇ (U+2047), ids out of range raise ValueError."""
        ...

    def state(self) -> TokenizerState:
        """Return JSON-able data that ``tokenizer_from_state`` understands."""
        ...


class TokenizerTrainer(Protocol):
    """Makes a tokenizer from normalized training texts."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer; impossible options raise ValueError."""
        ...


_FROM_STATE: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    CharacterTokenizer.kind: CharacterTokenizer.from_state,
    SubwordTokenizer.kind: SubwordTokenizer.from_state,
}


def tokenizer_from_state(state: Mapping[str, Any]) -> Tokenizer:
    """Rebuild a tokenizer from its ``state()``; a state from a stranger runs no code.

    Raises:
        ValueError: the kind of tokenizer is unknown, or the state was damaged.
    """
    kind = state.get("kind")
    if not isinstance(kind, str) or kind not in _FROM_STATE:
        raise ValueError(
            f"tokenizer state: kind {kind!r} is unknown; known are {', '.join(sorted(_FROM_STATE))}. "
            "It was written by a newer version, or it is no tokenizer state."
        )
    return _FROM_STATE[kind](state)
