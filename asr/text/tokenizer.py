"""Tokenizers: characters, sentencepiece units, a model of the user's own; text to tokens and back."""

from __future__ import annotations

import base64
import importlib
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from werdict.errors import first_line
from werdict.files import is_within, named_path, refuse_pointer, trusted
from werdict.normalization import SURROGATE, collapse_spaces

BLANK_ID = 0
UNKNOWN_ID = 1
SPECIAL_PIECES = ("<blk>", "<unk>")
NUM_SPECIAL = len(SPECIAL_PIECES)
SPACE_PIECE = "\u2581"  # sentencepiece's way of writing a space
UNKNOWN_SURFACE = "\u2047"  # what a reader sees of an unknown token: ⁇
SPECIAL_NAME = re.compile("<(?=blk>|unk>)")  # where such a name begins
MAX_UNKNOWN = 0.05  # share of characters
KINDS = sentencepiece_model_pb2.ModelProto.SentencePiece  # type: ignore[attr-defined]
ICEFALL_MARKS = ("<blk>", "<sos/eos>")  # pieces of theirs that no text has

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


class SubwordTokenizer(Vocabulary):
    """Subwords of a sentencepiece model; a run of unseen characters is one ``<unk>``, or its bytes if it has them."""

    kind = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        """Load a serialized sentencepiece model.

        Raises:
            RuntimeError: it is no such model; sentencepiece's own error.
            ValueError: its first pieces are not ``<blk>`` and ``<unk>``.
        """
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._model = model
        self.pieces = self._processor.id_to_piece(list(range(self._processor.vocab_size())))
        special = self._processor.is_control(BLANK_ID) and self._processor.unk_id() == UNKNOWN_ID
        if (*self.pieces[:NUM_SPECIAL],) != SPECIAL_PIECES or not special:
            raise ValueError(
                f"the sentencepiece model starts with pieces {self.pieces[:NUM_SPECIAL]}; {SPECIAL_PIECES[0]} "
                f"(control) and {SPECIAL_PIECES[1]} (unknown) are needed. Train it with SentencePieceTrainer."
            )
        self.surfaces = tuple(map(self._surface, range(self.vocab_size)))

    def _surface(self, token: int) -> str:
        """Return the text of a piece by itself."""
        if token == UNKNOWN_ID:
            return UNKNOWN_SURFACE
        if self._processor.is_byte(token):  # <0xE4>: mostly a part of a character
            return bytes([int(self.pieces[token][1:-1], base=16)]).decode("utf-8", "surrogateescape")
        return "" if self._processor.is_control(token) else self.pieces[token].replace(SPACE_PIECE, " ")

    def rewritten(self, normalize: Callable[[str], str], text: str) -> str:
        """Return text normalized, and then as the rules of the user's own model rewrite it, which ``decode`` keeps."""
        return collapse_spaces(self._processor.normalize(normalize(text)))

    def encode(self, text: str) -> list[int]:
        """Return the ids of the best segmentation of normalized text."""
        return list(self._processor.encode(collapse_spaces(text)))

    def state(self) -> TokenizerState:
        """Return everything needed to rebuild the tokenizer, as JSON-able data."""
        return {"kind": self.kind, "model": base64.b64encode(self._model).decode("ascii")}


@dataclass(frozen=True)
class SentencePieceTrainer:
    """Trains a sentencepiece model on normalized text, in memory, always the same from the same text.

    Attributes:
        vocab_size: number of ids, blank and unknown included.
        model_type: ``bpe`` or ``unigram``.
        character_coverage: share of the running characters that get a piece of their own, 0.98 to 1; the rarest
            others become ``<unk>``. Below 1 it keeps huge character sets (Chinese, Japanese) small.
    """

    vocab_size: int
    model_type: Literal["bpe", "unigram"]
    character_coverage: float = 1.0

    def train(self, texts: Iterable[str]) -> SubwordTokenizer:
        """Return a tokenizer with exactly ``vocab_size`` ids.

        Raises:
            ValueError: sentencepiece refuses the options, or the texts with them; its error says what it needs.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                # without the space sentencepiece would not learn from the characters of a special piece's name
                sentence_iterator=(SPECIAL_NAME.sub("< ", text) for text in map(collapse_spaces, texts) if text),
                model_writer=model,
                vocab_size=self.vocab_size,
                model_type=self.model_type,
                character_coverage=self.character_coverage,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                pad_id=BLANK_ID,
                pad_piece=SPECIAL_PIECES[BLANK_ID],
                unk_id=UNKNOWN_ID,
                unk_piece=SPECIAL_PIECES[UNKNOWN_ID],
                unk_surface=UNKNOWN_SURFACE,
                bos_id=-1,
                eos_id=-1,
                byte_fallback=False,
                max_sentence_length=2**30,  # longer lines would be left out without an error
                num_threads=1,  # the unigram sums depend on how many threads add them up
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(
                f"tokenizer: vocab_size={self.vocab_size}, model_type={self.model_type}: {first_line(error)} Change "
                "tokenizer.vocab_size, or train one token per character with tokenizer=char"
            ) from error
        return SubwordTokenizer(model.getvalue())


def icefall_tokenizer(model: bytes) -> tuple[SubwordTokenizer, list[int]]:
    """Return the tokenizer, and for each of its tokens the number that the token has in icefall's models.

    Theirs begins ``<blk>``, ``<sos/eos>``, ``<unk>``; ours has the unknown token second.

    Args:
        model: a serialized sentencepiece model.

    Raises:
        ValueError: it is no such model.

    Reference:
        icefall, egs/librispeech/ASR/local/train_bpe_model.py.
    """
    spec = _parsed(model)
    pieces = [piece.piece for piece in spec.pieces]
    unknown = [number for number, piece in enumerate(spec.pieces) if piece.type == KINDS.UNKNOWN]
    if pieces[:1] != [SPECIAL_PIECES[BLANK_ID]] or len(unknown) != 1:
        raise ValueError(
            f"the sentencepiece model begins {pieces[:3]}, with {len(unknown)} unknown pieces; icefall's begin "
            "['<blk>', '<sos/eos>', '<unk>']"
        )
    rest = [number for number in range(1, len(pieces)) if number != unknown[0]]
    order = [0, unknown[0], *rest]
    for piece in spec.pieces:
        if piece.piece in ICEFALL_MARKS:
            piece.type = KINDS.CONTROL
    return _rebuilt(spec, [spec.pieces[number] for number in order]), order


def own_tokenizer(model: bytes) -> SubwordTokenizer:
    """Return the tokenizer of any sentencepiece model, with the blank first, the unknown token second.

    Control pieces such as ``<s>``, which no text has, are left out. Rules that rewrite characters (see ``rewritten``),
    user-defined symbols and bytes work as in sentencepiece.

    Args:
        model: serialized.

    Raises:
        ValueError: it is no such model.
    """
    spec = _parsed(model)
    of_text = [piece for piece in spec.pieces if piece.type != KINDS.CONTROL and piece.piece not in SPECIAL_PIECES]
    unknown = [piece for piece in spec.pieces if piece.type == KINDS.UNKNOWN]
    blank = KINDS(piece=SPECIAL_PIECES[BLANK_ID], type=KINDS.CONTROL)
    return _rebuilt(spec, [blank, *unknown, *(piece for piece in of_text if piece.type != KINDS.UNKNOWN)])


def _parsed(model: bytes) -> Any:
    refuse_pointer(model, "it")
    try:
        spec = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise ValueError(f"{len(model)} bytes are no sentencepiece model: {error}") from error
    if not spec.pieces:
        raise ValueError(f"{len(model)} bytes are no sentencepiece model: it has no pieces")
    return spec


def _rebuilt(spec: Any, pieces: Sequence[Any]) -> SubwordTokenizer:
    """Return the tokenizer of a model with these pieces, of which the first two are the blank and the unknown one."""
    pieces = [KINDS.FromString(piece.SerializeToString()) for piece in pieces]
    del spec.pieces[:]
    spec.pieces.extend(pieces)
    spec.pieces[UNKNOWN_ID].piece = SPECIAL_PIECES[UNKNOWN_ID]
    trainer = spec.trainer_spec
    trainer.pad_id, trainer.pad_piece, trainer.unk_id = BLANK_ID, SPECIAL_PIECES[BLANK_ID], UNKNOWN_ID
    trainer.bos_id = trainer.eos_id = -1
    del trainer.user_defined_symbols[:]
    return SubwordTokenizer(spec.SerializeToString())


class Tokenizer(Protocol):
    """Turns normalized text into token ids and back: ``decode(encode(text)) == text`` for characters it has seen."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; id 0 is the blank ``<blk>``, id 1 the unknown ``<unk>``."""

    @property
    def pieces(self) -> list[str]:
        """The piece of every id; U+2581 stands for a space."""

    @property
    def surfaces(self) -> Sequence[str]:
        """The text of every id by itself; ``joined``, with runs of spaces as one, they are what ``decode`` returns."""

    def encode(self, text: str) -> list[int]:
        """Return token ids, never the blank; text without characters has none."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return text; blanks are dropped, ``<unk>`` reads ⁇ (U+2047), ids out of range raise ValueError."""

    def state(self) -> TokenizerState:
        """Return JSON-able data for ``tokenizer_from_state``: of a class of yours ``kind`` is its dotted name."""


class TokenizerTrainer(Protocol):
    """Makes a tokenizer from normalized training texts."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer; impossible options raise ValueError."""


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


def tokenizer_from_state(state: Mapping[str, Any]) -> Tokenizer:
    """Rebuild a tokenizer from its ``state()``, which is plain data; a class of yours needs ``from_state`` for it.

    Raises:
        ValueError: the kind of tokenizer is unknown, or of a package that the user does not trust.
    """
    kind = str(state.get("kind"))
    if kind == CharacterTokenizer.kind:
        return CharacterTokenizer(state["pieces"])
    if kind == SubwordTokenizer.kind:
        return SubwordTokenizer(base64.b64decode(state["model"]))
    module, _, name = kind.rpartition(".")
    if module and is_within(module, trusted()):
        return getattr(importlib.import_module(module), name).from_state(state)
    ours = f"{CharacterTokenizer.kind}, {SubwordTokenizer.kind}"
    raise ValueError(f"tokenizer state: kind {kind!r} is neither {ours} nor of a package in trust=[mypkg]")
