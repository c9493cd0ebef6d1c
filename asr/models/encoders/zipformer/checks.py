"""Checks of an encoder's options before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from asr.models.encoders.zipformer.attention import HeadSize
from asr.models.encoders.zipformer.chunks import ALL
from asr.models.encoders.zipformer.modules import OUTPUT_DOWNSAMPLING_FACTOR

MIN_BINS = 7
MIN_HIDDEN = 4  # of which three quarters are a whole number of channels
# the number of parameters does not bound these, which take memory per frame, or however short an utterance is
MAX_OF_STACK = {"num_heads": 32, "cnn_module_kernel": 1023, "downsampling_factor": 64}
MAX_FEEDFORWARD = 64  # for each channel of encoder_dim
MAX_WIDTH = 1024  # of a head, and of the channels of the front end


def checked_stacks(**stacks: Sequence[int]) -> list[dict[str, int]]:
    """Check the options that have one number per stack, and return them for each stack."""
    lengths = {name: len(values) for name, values in stacks.items()}
    if len(set(lengths.values())) != 1 or not lengths["encoder_dim"]:
        raise ValueError(f"every stack needs one number of each kind, given {lengths}")
    for name, values in stacks.items():
        least = MIN_HIDDEN if name in ("encoder_dim", "feedforward_dim") else 1
        if min(values) < least:
            raise ValueError(f"{name} must be at least {least} in every stack, given {list(values)}")
        most = MAX_OF_STACK.get(name)
        if most is not None and max(values) > most:
            raise ValueError(f"{name} must be at most {most} in every stack, given {list(values)}")
    each = [dict(zip(stacks, numbers, strict=True)) for numbers in zip(*stacks.values(), strict=True)]
    for stack in each:
        width, unmasked, hidden = stack["encoder_dim"], stack["encoder_unmasked_dim"], stack["feedforward_dim"]
        if unmasked > width:
            raise ValueError(f"encoder_unmasked_dim must be at most encoder_dim, given {unmasked} of {width}")
        if hidden > MAX_FEEDFORWARD * width:
            raise ValueError(
                f"feedforward_dim must be at most {MAX_FEEDFORWARD} * encoder_dim, given {hidden} of {width}"
            )
    if any(stack["cnn_module_kernel"] % 2 == 0 for stack in each):
        raise ValueError(f"cnn_module_kernel must be odd in every stack, given {list(stacks['cnn_module_kernel'])}")
    return each


def check_shared(num_features: int, head: HeadSize, subsampling_channels: Sequence[int]) -> None:
    """Check what all stacks share, and the front end."""
    if num_features < MIN_BINS:
        raise ValueError(f"num_features must be at least {MIN_BINS}, given {num_features}")
    for name, width in vars(head).items():
        if not 1 <= width <= MAX_WIDTH:
            raise ValueError(f"{name} must be at least 1 and at most {MAX_WIDTH}, given {width}")
    if head.pos_dim % 2:
        raise ValueError(f"pos_dim must be even, given {head.pos_dim}")
    if len(subsampling_channels) != 3 or min(subsampling_channels) < 1 or max(subsampling_channels) > MAX_WIDTH:
        raise ValueError(
            f"subsampling_channels must be three numbers of at least 1 and at most {MAX_WIDTH}, given "
            f"{list(subsampling_channels)}"
        )


def check_training(dropout: float, ref_duration_s: float) -> None:
    """Check what matters only in training."""
    if not 0 <= dropout < 1 / 3:
        raise ValueError(
            f"dropout must be at least 0 and below 1/3, as it begins three times as large, given {dropout}"
        )
    if not ref_duration_s > 0:
        raise ValueError(f"ref_duration_s must be positive, given {ref_duration_s}")


def check_chunks(
    chunk_size: Sequence[int], left_context_frames: Sequence[int], downsampling_factor: Sequence[int]
) -> None:
    """Check that chunks can be formed in every stack, and of the output."""
    if not chunk_size or not left_context_frames:
        raise ValueError("chunk_size and left_context_frames need at least one number each; -1 is all there is")
    factors = sorted({OUTPUT_DOWNSAMPLING_FACTOR, *downsampling_factor})
    for size in chunk_size:
        if size != ALL and (size < 1 or any(size % factor for factor in factors)):
            raise ValueError(
                f"chunk_size must be -1, or multiples of all of {factors}, the downsampling factors; given {size}"
            )
    for size in left_context_frames:
        if size != ALL and size < 0:
            raise ValueError(f"left_context_frames must be -1, or at least 0, given {size}")
