"""Tokenizer with sentencepiece's BPE or unigram pieces."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from asr.error_text import first_line
from asr.text.normalize import collapse_spaces, holds_space
from asr.text.sentencepiece_limits import MAX_VOCAB_SIZE, check_size
from asr.text.vocabulary import (
    BLANK_ID,
    NUM_SPECIAL,
    SPACE_PIECE,
    SPECIAL_PIECES,
    UNKNOWN_ID,
    UNKNOWN_SURFACE,
    TokenizerState,
    without_blanks,
)

MIN_COVERAGE = 0.98  # sentencepiece's own limit
MIN_VOCAB_SIZE = NUM_SPECIAL + 2  # a space and one character
MAX_PIECE = 100  # characters; sentencepiece makes at most 16 unless told otherwise
PROBE_PIECES = 10_000  # how far the message about a vocabulary that is too small looks for the upper limit
RESERVED = "\u2585"  # sentencepiece drops training lines that hold this character


def _spell_out(line: str) -> str:
    """Split the names of special pieces with a space: sentencepiece would not learn from their characters."""
    for name in SPECIAL_PIECES:
        line = line.replace(name, f"{name[0]} {name[1:]}")
    return line


class SubwordTokenizer:
    """Subwords of a sentencepiece model; a run of unseen characters is one ``<unk>``."""

    kind = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        """Load a serialized sentencepiece model.

        Raises:
            ValueError: it is no such model, its first pieces are not ``<blk>`` and ``<unk>``, there are too many, or a
                piece is no text, too long, or holds whitespace or control characters.
        """
        if not model:
            raise ValueError("the sentencepiece model is empty")
        check_size(model)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"{len(model)} bytes are no sentencepiece model: {error}") from error
        self._model = model
        self._pieces = tuple(self._processor.id_to_piece(list(range(self._processor.vocab_size()))))
        self.surfaces = tuple(map(self._surface, range(self.vocab_size)))
        special = self._processor.is_control(BLANK_ID) and self._processor.unk_id() == UNKNOWN_ID
        if self._pieces[:NUM_SPECIAL] != SPECIAL_PIECES or not special:
            raise ValueError(
                f"the sentencepiece model starts with pieces {list(self._pieces[:NUM_SPECIAL])}; {SPECIAL_PIECES[0]} "
                f"(control) and {SPECIAL_PIECES[1]} (unknown) are needed. Train it with SentencePieceTrainer."
            )
        spec = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
        if spec.normalizer_spec.precompiled_charsmap or spec.denormalizer_spec.precompiled_charsmap:
            # a stranger's rules could turn a character into megabytes
            raise ValueError(
                "the sentencepiece model rewrites characters; transcripts are normalized before, so train it with "
                "normalization_rule_name=identity"
            )

    def _surface(self, token: int) -> str:
        """Return the text of a piece by itself."""
        piece = self._pieces[token]
        if len(piece) > MAX_PIECE or self._processor.is_byte(token):
            kind = "a byte" if self._processor.is_byte(token) else f"{len(piece)} characters long"
            raise ValueError(
                f"piece {token} of the sentencepiece model, {piece[:20]!r}, is {kind}; pieces are text of at most "
                f"{MAX_PIECE} characters"
            )
        if holds_space(piece):
            raise ValueError(
                f"piece {token} of the sentencepiece model, {piece[:20]!r}, holds whitespace or control characters, "
                f"which no normalized text has; a space is written {SPACE_PIECE} (U+2581)"
            )
        if token == UNKNOWN_ID:
            return UNKNOWN_SURFACE
        return "" if self._processor.is_control(token) else piece.replace(SPACE_PIECE, " ")

    @property
    def vocab_size(self) -> int:
        """Number of ids, blank and unknown included."""
        return len(self._pieces)

    @property
    def pieces(self) -> list[str]:
        """The piece of every id; U+2581 stands for a space."""
        return list(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the best segmentation of normalized text."""
        return list(self._processor.encode(collapse_spaces(text)))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; blanks are dropped.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        # sentencepiece's own decoding follows the model, where a stranger can give <unk> megabytes of text
        return collapse_spaces("".join(self.surfaces[token] for token in without_blanks(ids, self.vocab_size)))

    def state(self) -> TokenizerState:
        """Return everything needed to rebuild the tokenizer, as JSON-able data."""
        return {"kind": self.kind, "model": base64.b64encode(self._model).decode("ascii")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SubwordTokenizer:
        """Rebuild from ``state()``.

        Raises:
            ValueError: the state was damaged.
        """
        encoded = state.get("model")
        if not isinstance(encoded, str):
            raise ValueError(f"sentencepiece tokenizer: its state holds no text 'model' but {type(encoded).__name__}")
        try:
            model = base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise ValueError(f"sentencepiece tokenizer: the model in its state is not base64: {error}") from error
        return cls(model)


def _num_required(tokenizer: SubwordTokenizer) -> int:
    """The size of the smallest vocabulary: the special pieces and one piece per character."""
    return NUM_SPECIAL + sum(len(piece) == 1 for piece in tokenizer.pieces)


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

    def __post_init__(self) -> None:
        if self.model_type not in ("bpe", "unigram"):
            raise ValueError(f"model_type={self.model_type!r} is not one of bpe, unigram; choose one")
        if self.vocab_size > MAX_VOCAB_SIZE:
            raise ValueError(f"vocab_size={self.vocab_size} is more than {MAX_VOCAB_SIZE}; give a smaller one")
        if self.vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(
                f"vocab_size={self.vocab_size} leaves no room for text; "
                f"give at least {MIN_VOCAB_SIZE}, for example data.vocab_size=500"
            )
        if not MIN_COVERAGE <= self.character_coverage <= 1:
            raise ValueError(
                f"character_coverage={self.character_coverage} lies outside {MIN_COVERAGE} to 1; "
                "choose 1 to keep every character"
            )

    def train(self, texts: Iterable[str]) -> SubwordTokenizer:
        """Return a tokenizer with exactly ``vocab_size`` ids.

        Raises:
            ValueError: the texts hold no character, or U+2585, or do not allow that vocabulary size.
        """
        lines = [line for line in map(collapse_spaces, texts) if line]
        if not lines:
            raise ValueError(
                "tokenizer: the training texts hold no character; check the transcripts of the train split"
            )
        if reserved := next((line for line in lines if RESERVED in line), None):
            raise ValueError(
                f"tokenizer: text {reserved[:60]!r} holds {RESERVED} (U+2585), which sentencepiece keeps for itself; "
                "remove it, for example with the normalizer's punctuation=strip"
            )
        try:
            tokenizer = self._fit(lines, self.vocab_size)
        except RuntimeError as error:
            # sentencepiece stops like this when there are more characters than pieces
            self._refuse_if_too_small(lines, error)
            raise ValueError(self._failure(error)) from error
        if tokenizer.vocab_size < self.vocab_size:
            raise ValueError(self._refusal(_num_required(tokenizer), str(tokenizer.vocab_size)))
        return tokenizer

    def _fit(self, lines: list[str], vocab_size: int) -> SubwordTokenizer:
        """Train; the vocabulary is smaller than asked if the text has fewer pieces."""
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(_spell_out, lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=self.model_type,
            character_coverage=self.character_coverage,
            hard_vocab_limit=False,
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
        return SubwordTokenizer(model.getvalue())

    def _refuse_if_too_small(self, lines: list[str], cause: RuntimeError) -> None:
        most = len(set().union(*lines)) + PROBE_PIECES
        try:
            tokenizer = self._fit(lines, most)
        except RuntimeError as error:
            raise ValueError(self._failure(error)) from error
        highest = f"{most} or more" if tokenizer.vocab_size == most else str(tokenizer.vocab_size)
        if self.vocab_size < _num_required(tokenizer):
            raise ValueError(self._refusal(_num_required(tokenizer), highest)) from cause

    def _failure(self, error: RuntimeError) -> str:
        return (
            f"tokenizer: sentencepiece cannot learn model_type={self.model_type!r} from this text "
            f"({first_line(error)}); check that its words are parted by spaces, or train one token per character with "
            "tokenizer=char"
        )

    def _refusal(self, lowest: int, highest: str) -> str:
        needed = f"{lowest} (blank, unknown and {lowest - NUM_SPECIAL} characters, the space among them)"
        return (
            f"tokenizer: vocab_size={self.vocab_size} is not possible with model_type={self.model_type!r} on this "
            f"text, which allows {needed} to {highest}. Set tokenizer.vocab_size within these limits, or train "
            "one token per character with tokenizer=char"
        )
