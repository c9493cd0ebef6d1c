"""What an encoder is refused for, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asr.models.encoders.zipformer.chunks import ALL
from asr.models.encoders.zipformer.resample import OUTPUT_DOWNSAMPLING
from asr.models.encoders.zipformer.subsampling import MIN_BINS

MIN_HIDDEN = 4  # of which three quarters are a whole number of channels
# parameters do not bound these, which take memory for every frame, or beside the utterance, however short that is
MAX_OF_STACK = {"num_heads": 32, "kernel_width": 1023, "downsampling": 64}
MAX_FEEDFORWARD = 64  # for each channel of d_model
MAX_WIDTH = 1024  # of what a head has, and of the channels of the front end


def check_stacks(stacks: Mapping[str, Sequence[int]]) -> None:
    """Check what is given for each stack."""
    lengths = {name: len(values) for name, values in stacks.items()}
    if len(set(lengths.values())) != 1 or not lengths["d_model"]:
        raise ValueError(f"every stack needs one number of each kind, given {lengths}")
    for name, values in stacks.items():
        least = MIN_HIDDEN if name in ("d_model", "d_feedforward") else 1
        if min(values) < least:
            raise ValueError(f"{name} must be at least {least} in every stack, given {list(values)}")
        most = MAX_OF_STACK.get(name)
        if most is not None and max(values) > most:
            raise ValueError(f"{name} must be at most {most} in every stack, given {list(values)}")
    for width, unmasked in zip(stacks["d_model"], stacks["unmasked_width"], strict=True):
        if unmasked > width:
            raise ValueError(f"unmasked_width must be at most d_model, given {unmasked} of {width}")
    for width, hidden in zip(stacks["d_model"], stacks["d_feedforward"], strict=True):
        if hidden > MAX_FEEDFORWARD * width:
            raise ValueError(f"d_feedforward must be at most {MAX_FEEDFORWARD} * d_model, given {hidden} of {width}")
    if any(width % 2 == 0 for width in stacks["kernel_width"]):
        raise ValueError(f"kernel_width must be odd in every stack, given {list(stacks['kernel_width'])}")


def check_widths(num_features: int, widths: Mapping[str, int], subsampling_channels: Sequence[int]) -> None:
    """Check what all stacks share, and the front end."""
    if num_features < MIN_BINS:
        raise ValueError(f"num_features must be at least {MIN_BINS}, given {num_features}")
    for name, width in widths.items():
        if not 1 <= width <= MAX_WIDTH:
            raise ValueError(f"{name} must be at least 1 and at most {MAX_WIDTH}, given {width}")
    if widths["position_width"] % 2:
        raise ValueError(f"position_width must be even, given {widths['position_width']}")
    if len(subsampling_channels) != 3 or min(subsampling_channels) < 1 or max(subsampling_channels) > MAX_WIDTH:
        raise ValueError(
            f"subsampling_channels must be three numbers of at least 1 and at most {MAX_WIDTH}, given "
            f"{list(subsampling_channels)}"
        )


def check_training(dropout: float, batch_s: float) -> None:
    """Check what matters in training alone."""
    if not 0 <= dropout < 1 / 3:
        raise ValueError(
            f"dropout must be at least 0 and below 1/3, as it begins three times as large, given {dropout}"
        )
    if not batch_s > 0:
        raise ValueError(f"batch_s must be positive, given {batch_s}")


def check_chunks(chunk_frames: Sequence[int], left_context_frames: Sequence[int], downsampling: Sequence[int]) -> None:
    """Check that chunks can be formed in every stack, and of the output."""
    if not chunk_frames or not left_context_frames:
        raise ValueError("chunk_frames and left_context_frames need at least one number each; -1 is all there is")
    factors = sorted({OUTPUT_DOWNSAMPLING, *downsampling})
    for size in chunk_frames:
        if size != ALL and (size < 1 or any(size % factor for factor in factors)):
            raise ValueError(
                f"chunk_frames must be -1, or multiples of all of {factors}, by which frames are taken together; "
                f"given {size}"
            )
    for size in left_context_frames:
        if size != ALL and size < 0:
            raise ValueError(f"left_context_frames must be -1, or at least 0, given {size}")
