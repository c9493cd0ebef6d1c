"""Weights of icefall's Zipformer, and of the package ``zipformer``, for our encoder.

Theirs are the front end ``encoder_embed`` and the stacks ``encoder`` of one model. Ours have the same names but for
what `RULES` change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# the first that matches the whole name counts
RULES = (
    (r"(encoder_embed)\.conv\.0\.(weight|bias)", r"\1.conv1.\2"),
    (r"(encoder_embed)\.conv\.4\.(weight|bias)", r"\1.conv2.\2"),
    (r"(encoder_embed)\.conv\.7\.(weight|bias)", r"\1.conv3.\2"),
    (r"(encoder_embed\.(?:convnext|out|out_norm)\..+)", r"\1"),
    # at the full rate a stack holds its layers, elsewhere an encoder that does
    (r"encoder\.(encoders\.\d+)\.(?:encoder\.)?(layers\.\d+\..+)", r"\1.\2"),
    (r"encoder\.(encoders\.\d+\.out_combiner\.bypass_scale)", r"\1"),
    (r"encoder\.(encoders\.\d+\.downsample|downsample_output)\.bias", r"\1.logits"),
)
UNUSED = r"encoder\.encoders\.\d+\.(?:encoder\.)?layers\.\d+\.bypass_scale"  # exists, but nothing reads it
OTHER_PARTS = ("ctc_output.", "decoder.", "joiner.", "simple_am_proj.", "simple_lm_proj.", "attention_decoder.")


@dataclass(frozen=True)
class Converted:
    """What has become of a model's tensors.

    Attributes:
        weights: of the encoder, under our names.
        unused: their names of tensors that nothing reads.
        other: their names of tensors that are not of an encoder.
    """

    weights: dict[str, Tensor]
    unused: tuple[str, ...]
    other: tuple[str, ...]


def convert(theirs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Converted:
    """Give tensors of icefall's model the names and shapes of our encoder's.

    Args:
        theirs: the model's state.
        expected: the state of our encoder: what must come out. Its buffers are not in theirs, and stay.

    Raises:
        ValueError: a tensor is unknown or missing, exists twice, has another size than expected, or does not hold
            finite floating-point numbers.
    """
    # how often whitening works is not saved by them
    buffers = {name: value for name, value in expected.items() if name.endswith(".probability")}
    weights, unused, other = dict[str, Tensor](), list[str](), list[str]()
    for name, tensor in theirs.items():
        if re.fullmatch(UNUSED, name):
            unused.append(name)
        elif name.startswith(OTHER_PARTS):
            other.append(name)
        else:
            ours = our_name(name)
            if ours in weights:
                raise ValueError(f"{name} ({ours}) is there twice, under another name too")
            weights[ours] = _shaped(tensor, None if ours in buffers else expected.get(ours), f"{name} ({ours})")
    missing = sorted(set(expected) - set(weights) - set(buffers))
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, the first {missing[0]}; is it a Zipformer of this size?")
    return Converted({**buffers, **weights}, tuple(unused), tuple(other))


def our_name(name: str) -> str:
    """Return what we call a tensor of theirs.

    Raises:
        ValueError: it is not known.
    """
    for pattern, ours in RULES:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(ours)
    raise ValueError(f"{name} is no tensor of a Zipformer that is known here")


def _shaped(tensor: Tensor, expected: Tensor | None, name: str) -> Tensor:
    """Return a tensor in the shape that is expected: convolutions over one place are linear maps here."""
    check_weight(tensor, name)
    if expected is None:
        raise ValueError(f"{name} is not in the encoder; compare its number of layers, and whether it is causal")
    plain = tensor.flatten(1) if tensor.ndim == 4 and expected.ndim == 2 else tensor
    if plain.shape != expected.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(expected.shape)} as in the encoder")
    return plain.detach().clone()


def check_weight(tensor: Tensor, name: str) -> None:
    """Refuse what holds anything but floating-point numbers that are finite in 32 bits.

    Raises:
        ValueError: it does.
    """
    dense = tensor.layout is torch.strided and tensor.device.type != "meta"
    # also as ours: numbers of 64 bits may be too large for 32
    if not dense or not tensor.is_floating_point() or not tensor.float().isfinite().all():
        raise ValueError(
            f"{name} must hold floating-point numbers, finite in 32 bits, as weights do; it is of type {tensor.dtype}"
        )
