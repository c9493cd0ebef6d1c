"""Weights of icefall's Zipformer, and of the package ``zipformer``, under the names of ours.

Theirs are the front end ``encoder_embed`` and the stacks ``encoder`` of one model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LAYER = r"encoder\.encoders\.(\d+)\.(?:encoder\.)?layers\.(\d+)\."
OURS = r"stacks.\1.layers.\2."
CONVOLUTIONS = {
    "in_proj": "project",
    r"depthwise_conv\.causal_conv": "convolution.past",
    r"depthwise_conv\.chunkwise_conv": "convolution.within",
    "depthwise_conv": "convolution",
    "out_proj": "output.linear",
}

# the first that fits the whole name counts; (weight|bias) stay as they are
FRONT_END = (
    (r"encoder_embed\.conv\.0", "subsampling.convolution1"),
    (r"encoder_embed\.conv\.4", "subsampling.convolution2"),
    (r"encoder_embed\.conv\.7", "subsampling.convolution3"),
    (r"encoder_embed\.convnext\.depthwise_conv", "subsampling.convnext.convolution"),
    (r"encoder_embed\.convnext\.pointwise_conv1", "subsampling.convnext.hidden"),
    (r"encoder_embed\.convnext\.pointwise_conv2", "subsampling.convnext.output"),
    (r"encoder_embed\.out", "subsampling.project"),
)
LAYERS = (
    (LAYER + r"self_attn_weights\.in_proj", OURS + "attention_weights.project"),
    (LAYER + r"self_attn_weights\.linear_pos", OURS + "attention_weights.project_positions"),
    (LAYER + r"self_attn(\d)\.in_proj", OURS + r"attention\3.value"),
    (LAYER + r"self_attn(\d)\.out_proj", OURS + r"attention\3.output"),
    (LAYER + r"feed_forward(\d)\.in_proj", OURS + r"feedforward\3.hidden"),
    (LAYER + r"feed_forward(\d)\.out_proj", OURS + r"feedforward\3.output.linear"),
    (LAYER + r"nonlin_attention\.in_proj", OURS + "nonlinear_attention.project"),
    (LAYER + r"nonlin_attention\.out_proj", OURS + "nonlinear_attention.output"),
    *(
        (LAYER + r"conv_module(\d)\." + theirs, OURS + r"convolution\3." + ours)
        for theirs, ours in CONVOLUTIONS.items()
    ),
)
WHOLE_NAMES = (
    (r"encoder_embed\.out_norm\.(log_scale|bias)", r"subsampling.norm.\1"),
    (LAYER + r"norm\.(log_scale|bias)", OURS + r"norm.\3"),
    (LAYER + r"bypass\.bypass_scale", OURS + "bypass.scale"),
    (LAYER + r"bypass_mid\.bypass_scale", OURS + "bypass_middle.scale"),
    (
        LAYER + r"conv_module(\d)\.depthwise_conv\.chunkwise_conv_scale",
        OURS + r"convolution\3.convolution.edges",
    ),
    (r"encoder\.encoders\.(\d+)\.downsample\.bias", r"stacks.\1.downsample.logits"),
    (r"encoder\.encoders\.(\d+)\.out_combiner\.bypass_scale", r"stacks.\1.bypass.scale"),
    (r"encoder\.downsample_output\.bias", "downsample.logits"),
)
RULES = (
    *WHOLE_NAMES,
    *((rf"{theirs}\.(?P<kind>weight|bias)", rf"{ours}.\g<kind>") for theirs, ours in (*FRONT_END, *LAYERS)),
)
UNUSED = LAYER + "bypass_scale"  # there, but read by nothing
OTHER_PARTS = ("ctc_output.", "decoder.", "joiner.", "simple_am_proj.", "simple_lm_proj.", "attention_decoder.")


@dataclass(frozen=True)
class Converted:
    """What has become of a model's tensors.

    Attributes:
        weights: of the encoder, under our names.
        unused: names of theirs that nothing reads.
        other: names of parts that are no encoder.
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
        ValueError: a tensor that is not known, is missing, is there twice, has another size than expected, or holds
            other than finite floating-point numbers.
    """
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
            _refuse_no_weight(tensor, f"{name} ({ours})")
            weights[ours] = _shaped(tensor, expected.get(ours), f"{name} ({ours})")
    # how often whitening works is not saved by them
    buffers = {name: value for name, value in expected.items() if name.endswith(".probability")}
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


def _refuse_no_weight(tensor: Tensor, name: str) -> None:
    dense = tensor.layout is torch.strided and tensor.device.type != "meta"
    if not dense or not tensor.is_floating_point() or not tensor.isfinite().all():
        raise ValueError(f"{name} must hold finite floating-point numbers, as weights do; it is of type {tensor.dtype}")


def _shaped(tensor: Tensor, expected: Tensor | None, name: str) -> Tensor:
    """Return a tensor in the shape that is expected: convolutions over one place are linear maps here."""
    if expected is None:
        raise ValueError(f"{name} is not in the encoder; compare its number of layers, and whether it is causal")
    plain = tensor.flatten(1) if tensor.ndim == 4 and expected.ndim == 2 else tensor
    if plain.shape != expected.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(expected.shape)} as in the encoder")
    return plain.detach().clone()
