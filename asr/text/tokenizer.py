"""What the rest of the program knows of a tokenizer, and how one comes back from a checkpoint."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from asr.plain_data import is_within, trusted
from asr.safe_io import named_path
from asr.text.character import CharacterTokenizer
from asr.text.normalize import collapse_spaces
from asr.text.subword import SubwordTokenizer, own_tokenizer
from asr.text.vocabulary import UNKNOWN_ID, TokenizerState

MAX_UNKNOWN = 0.05  # share of characters


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
        """The text of every id by itself; ``joined``, with runs of spaces as one, they are what ``decode`` returns."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return token ids, never the blank; text without characters has none."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return text; blanks are dropped, ``<unk>`` reads ⁇ (U+2047), ids out of range raise ValueError."""
        ...

    def state(self) -> TokenizerState:
        """Return JSON-able data for ``tokenizer_from_state``: of a class of yours ``kind`` is its dotted name."""
        ...


class TokenizerTrainer(Protocol):
    """Makes a tokenizer from normalized training texts."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer; impossible options raise ValueError."""
        ...


def unknown_characters(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[float, list[str]]:
    """Return the share of the characters of normalized texts that a tokenizer does not know, and the commonest of them.

    Returns:
        The share, in [0, 1], and at most ten characters.
    """
    counts = Counter(character for text in texts for character in text)
    unknown = {char: n for char, n in counts.items() if char != " " and UNKNOWN_ID in tokenizer.encode(char)}
    known = next((char for char in counts if char != " " and char not in unknown), None)
    # a space by itself is trimmed; a tokenizer of single words lacks it
    if " " in counts and known is not None and UNKNOWN_ID in tokenizer.encode(f"{known} {known}"):
        unknown[" "] = counts[" "]
    return sum(unknown.values()) / max(1, counts.total()), sorted(unknown, key=lambda char: -unknown[char])[:10]


def unchanged(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    """Yield normalized texts; ValueError after the last if the tokenizer changes one whose characters it knows."""
    num_texts, changed = 0, list[str]()
    for text in texts:
        num_texts += 1
        ids = tokenizer.encode(text)
        if UNKNOWN_ID not in ids and (decoded := tokenizer.decode(ids)) != collapse_spaces(text):
            changed.append(f"{text!r} → {decoded!r}")
        yield text
    if changed:
        raise ValueError(
            f"the tokenizer changes {len(changed)} of {num_texts} training texts ({len(changed) / num_texts:.1%}), so "
            f"that even a perfect recognizer has errors, such as {', '.join(changed[:3])}; change the texts as it does "
            "(data.text), or choose tokenizer=bpe"
        )


def case_that_is_known(tokenizer: Tokenizer, unknown: Collection[str]) -> str:
    """Return the option by which most of some unknown characters become known, as those of an upper-case vocabulary."""
    for case, changed in (("upper", str.upper), ("lower", str.lower)):
        known = [character for character in unknown if UNKNOWN_ID not in tokenizer.encode(changed(character))]
        if 2 * len(known) > len(unknown):
            return f"data.text.case={case}"
    return ""


class KeptTokenizer:
    """Instead of training a tokenizer, uses one that another model was trained with."""

    instead = "init.keep_tokenizer=false"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            ValueError: it does not know much of the texts, or changes one.
        """
        share, most = unknown_characters(self.tokenizer, unchanged(self.tokenizer, texts))
        if share > MAX_UNKNOWN:
            raise ValueError(
                f"the tokenizer does not know {share:.1%} of the characters of the training texts, such as "
                f"{' '.join(map(repr, most))}; change the texts "
                f"({case_that_is_known(self.tokenizer, most) or 'data.text'}), or train a tokenizer ({self.instead})"
            )
        return self.tokenizer


class SentencePieceFile(KeptTokenizer):
    """Instead of training a tokenizer, uses the user's own sentencepiece model.

    Args:
        path: of the ``.model`` file.

    Raises:
        ValueError: the file is no such model.
        OSError: it cannot be read.
    """

    instead = "tokenizer=bpe"

    def __init__(self, path: str) -> None:
        try:
            super().__init__(own_tokenizer(named_path(path).read_bytes()))
        except (ValueError, RuntimeError) as error:  # of sentencepiece
            raise ValueError(f"tokenizer.path: {path}: {error}") from error


_FROM_STATE: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    CharacterTokenizer.kind: CharacterTokenizer.from_state,
    SubwordTokenizer.kind: SubwordTokenizer.from_state,
}


def tokenizer_from_state(state: Mapping[str, Any]) -> Tokenizer:
    """Rebuild a tokenizer from its ``state()``, which is plain data; a class of yours needs ``from_state`` for it.

    Raises:
        ValueError: the kind of tokenizer is unknown, or of a package that the user does not trust.
    """
    kind = str(state.get("kind"))
    if kind in _FROM_STATE:
        return _FROM_STATE[kind](state)
    module, _, name = kind.rpartition(".")
    if module and is_within(module, trusted()):
        tokenizer: Tokenizer = getattr(importlib.import_module(module), name).from_state(state)
        return tokenizer
    known = ", ".join(sorted(_FROM_STATE))
    raise ValueError(f"tokenizer state: kind {kind!r} is neither {known} nor of a package in trust=[mypkg]")
