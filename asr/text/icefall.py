"""The tokenizer of an icefall recipe, ``bpe.model``, with the order of tokens that ours have."""

from __future__ import annotations

from sentencepiece import sentencepiece_model_pb2

from asr.text.sentencepiece_limits import check_size
from asr.text.subword import SubwordTokenizer
from asr.text.vocabulary import BLANK_ID, SPECIAL_PIECES, UNKNOWN_ID

MARKS = ("<blk>", "<sos/eos>")  # pieces of theirs that no text has
MAX_BYTES = 2**26


def icefall_tokenizer(model: bytes) -> tuple[SubwordTokenizer, list[int]]:
    """Return the tokenizer, and for each of its tokens the number that the token has in icefall's models.

    Theirs begins ``<blk>``, ``<sos/eos>``, ``<unk>``; ours has the unknown token second. Its rules that rewrite
    characters are left out: transcripts are normalized before.

    Args:
        model: a serialized sentencepiece model.

    Raises:
        ValueError: it is no such model, or too large.

    Reference:
        icefall, egs/librispeech/ASR/local/train_bpe_model.py.
    """
    check_size(model)
    try:
        spec = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    except Exception as error:  # protobuf's own, whose class depends on how it was built
        raise ValueError(f"{len(model)} bytes are no sentencepiece model: {error}") from error
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece  # type: ignore[attr-defined]
    pieces = [piece.piece for piece in spec.pieces]
    unknown = [number for number, piece in enumerate(spec.pieces) if piece.type == kinds.UNKNOWN]
    if pieces[:1] != [SPECIAL_PIECES[BLANK_ID]] or len(unknown) != 1:
        raise ValueError(
            f"the sentencepiece model begins {pieces[:3]}, with {len(unknown)} unknown pieces; icefall's begin "
            "['<blk>', '<sos/eos>', '<unk>']"
        )
    rest = [number for number in range(1, len(pieces)) if number != unknown[0]]
    order = [0, unknown[0], *rest]
    reordered = [spec.pieces[number] for number in order]
    del spec.pieces[:]
    spec.pieces.extend(reordered)
    spec.pieces[UNKNOWN_ID].piece = SPECIAL_PIECES[UNKNOWN_ID]
    for piece in spec.pieces:
        if piece.piece in MARKS:
            piece.type = kinds.CONTROL
    trainer = spec.trainer_spec
    trainer.pad_id, trainer.pad_piece, trainer.unk_id = BLANK_ID, SPECIAL_PIECES[BLANK_ID], UNKNOWN_ID
    trainer.bos_id = trainer.eos_id = -1
    del trainer.user_defined_symbols[:]
    for rules in (spec.normalizer_spec, spec.denormalizer_spec):
        rules.precompiled_charsmap, rules.name = b"", "identity"
    return SubwordTokenizer(spec.SerializeToString()), order
