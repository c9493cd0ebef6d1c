"""Weights of icefall's Zipformer, and of the package ``zipformer``, for our encoder and our heads.

Theirs are the front end ``encoder_embed`` and the stacks ``encoder`` of one model, and its heads. Ours have the same
names but for what the rules change.

V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

# the first that matches the whole name counts
ENCODER_RULES = (
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
# the first that matches the whole name, and whose result the head has, counts
HEAD_RULES = (
    (r"ctc_output\.1\.(weight|bias)", r"project.\1"),
    (r"ctc_output\.1\.(weight|bias)", r"ctc.project.\1"),
    (r"decoder\.(embedding\.weight|conv\.weight)", r"predictor.\1"),
    (r"(joiner\.(?:encoder_proj|decoder_proj|output_linear)\.(?:weight|bias))", r"\1"),
    (r"(simple_[al]m_proj\.(?:weight|bias))", r"\1"),
)


@dataclass(frozen=True)
class Converted:
    """What has become of a model's tensors.

    Attributes:
        weights: by our names.
        unused: the names there of tensors that nothing reads.
        other: the names there of tensors that are not of an encoder.
    """

    weights: dict[str, Tensor]
    unused: tuple[str, ...]
    other: tuple[str, ...]


def convert_encoder(theirs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Converted:
    """Give tensors of icefall's model the names and shapes of our encoder's.

    Args:
        theirs: tensors of a model by their names.
        expected: the state of our encoder: what must come out. Its buffers are not in theirs, and stay.

    Raises:
        ValueError: a tensor is unknown or missing, or has another size than expected.
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
    for pattern, ours in ENCODER_RULES:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(ours)
    raise ValueError(f"{name} is no tensor of a Zipformer that is known here")


def _shaped(tensor: Tensor, expected: Tensor | None, name: str) -> Tensor:
    """Return a tensor in the shape that is expected: convolutions over one place are linear maps here."""
    if expected is None:
        raise ValueError(f"{name} is not in the encoder; compare its number of layers, and whether it is causal")
    plain = tensor.flatten(1) if tensor.ndim == 4 and expected.ndim == 2 else tensor
    if plain.shape != expected.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(expected.shape)} as in the encoder")
    return plain.detach().clone()


def convert_head(
    theirs: Mapping[str, Tensor], expected: Mapping[str, Tensor], order: Sequence[int]
) -> dict[str, Tensor]:
    """Give the tensors of icefall's heads the names of one of ours, and its order of tokens.

    Args:
        theirs: tensors of a model by their names; those of other heads are left out.
        expected: the state of our head: what must come out.
        order: (V,) the number that each of our tokens has there.

    Raises:
        ValueError: a tensor is missing, or of another size.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        for pattern, ours in HEAD_RULES:
            found = re.fullmatch(pattern, name)
            if found and found.expand(ours) in expected:
                weights[found.expand(ours)] = _of_head(name, tensor, expected[found.expand(ours)], order)
    if missing := sorted(set(expected) - set(weights)):
        parts = ", ".join(sorted({name.partition(".")[0] for name in theirs})) or "nothing"
        raise ValueError(
            f"the model has nothing for {missing[0]} of the head, and beside the encoder {parts}; ctc_output is for "
            "head=ctc, decoder and joiner are for head=transducer, all together for head=transducer_ctc"
        )
    return weights


def _of_head(name: str, tensor: Tensor, expected: Tensor, order: Sequence[int]) -> Tensor:
    if tensor.shape != expected.shape:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, not {list(expected.shape)} as the head has with a vocabulary of "
            f"{len(order)}; give the tokenizer of the model, and the options of its head"
        )
    of_vocabulary = not name.startswith(("decoder.conv", "joiner.encoder_proj", "joiner.decoder_proj"))
    return tensor[list(order)].clone() if of_vocabulary else tensor.detach().clone()
