"""Tokenizer with sentencepiece's pieces: trained here, by icefall, or by the user."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from asr.errors import first_line
from asr.safe_io import refuse_pointer
from asr.text.normalize import collapse_spaces
from asr.text.vocabulary import (
    BLANK_ID,
    NUM_SPECIAL,
    SPACE_PIECE,
    SPECIAL_PIECES,
    UNKNOWN_ID,
    UNKNOWN_SURFACE,
    TokenizerState,
    Vocabulary,
)

KINDS = sentencepiece_model_pb2.ModelProto.SentencePiece  # type: ignore[attr-defined]
ICEFALL_MARKS = ("<blk>", "<sos/eos>")  # pieces of theirs that no text has


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

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SubwordTokenizer:
        """Rebuild from ``state()``."""
        return cls(base64.b64decode(state["model"]))


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
                sentence_iterator=map(_spell_out, filter(None, map(collapse_spaces, texts))),
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


def _spell_out(line: str) -> str:
    """Split the names of special pieces with a space: sentencepiece would not learn from their characters."""
    for name in SPECIAL_PIECES:
        line = line.replace(name, f"{name[0]} {name[1:]}")
    return line


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
