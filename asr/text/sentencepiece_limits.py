"""How much a serialized sentencepiece model may hold, counted in its bytes before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterator

MAX_VOCAB_SIZE = 1_000_000
MAX_OTHER_BYTES = 2**22  # of the options it was trained with, rules and self-tests; most models have some hundred
PIECES = 1  # number of the field, of which there is one for each piece
FIXED = {1: 8, 5: 4}  # bytes of a value, by the kind that its tag tells
VARINT, WITH_LENGTH = 0, 2


def check_size(model: bytes) -> None:
    """Refuse a model with more pieces than a vocabulary may have, each of which becomes objects of hundreds of bytes.

    Args:
        model: serialized.

    Raises:
        ValueError: it has more, or more of all else than a model needs, or is no message of protobuf.

    Reference:
        https://protobuf.dev/programming-guides/encoding; fields of ``ModelProto``: sentencepiece_model.proto.
    """
    num_pieces = other_bytes = 0
    for field, num_bytes in _fields(model):
        if field == PIECES:
            num_pieces += 1
        else:
            other_bytes += num_bytes
        if num_pieces > MAX_VOCAB_SIZE:
            raise ValueError(f"the sentencepiece model has more than {MAX_VOCAB_SIZE} pieces; give one with fewer")
        if other_bytes > MAX_OTHER_BYTES:
            raise ValueError(
                f"the sentencepiece model holds more than {MAX_OTHER_BYTES} bytes beside its pieces, which none needs"
            )


def _fields(model: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number of each field of a message and how many bytes it takes."""
    place = 0
    while place < len(model):
        start = place
        tag, place = _varint(model, place)
        kind = tag & 7
        if kind == WITH_LENGTH:
            length, place = _varint(model, place)
            place += length
        elif kind == VARINT:
            _, place = _varint(model, place)
        elif kind in FIXED:
            place += FIXED[kind]
        else:
            place = len(model) + 1
        if place > len(model):
            raise ValueError(f"{len(model)} bytes are no sentencepiece model: byte {start} begins no field of one")
        yield tag >> 3, place - start


def _varint(model: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a place, seven bits in a byte, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(model):
            break
        byte = model[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return value, place
    return value, len(model) + 1
