"""Weights of icefall's Zipformer and Zapformer, and of the package ``zipformer``, for our encoders and our heads.

Theirs are the front end ``encoder_embed`` and the stacks ``encoder`` of one model, and its heads. Ours have the same
names but for what the rules change.

V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr.models.pretrained import check_finite, read_tensors

# the first that matches the whole name counts
ENCODER_RULES = (
    (r"(encoder_embed)\.conv\.0\.(weight|bias)", r"\1.conv1.\2"),
    # the second number is the Zapformer's
    (r"(encoder_embed)\.conv\.[43]\.(weight|bias)", r"\1.conv2.\2"),
    (r"(encoder_embed)\.conv\.[75]\.(weight|bias)", r"\1.conv3.\2"),
    (r"(encoder_embed\.(?:convnext|out|out_norm)\..+)", r"\1"),
    # at the full rate a stack holds its layers, elsewhere an encoder that does
    (r"encoder\.(encoders\.\d+)\.(?:encoder\.)?(layers\.\d+\..+)", r"\1.\2"),
    (r"encoder\.(encoders\.\d+\.(?:out_combiner\.bypass_scale|proj\.weight|residual_scales|input_scale))", r"\1"),
    (r"encoder\.(out_norm\.(?:scale|eps))", r"\1"),
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
NOT_OF_TOKENS = ("predictor.conv", "joiner.encoder_proj", "joiner.decoder_proj")  # their rows are no tokens
FIRST_FRONT_END, FIRST_PROJECTION = "encoder_embed.conv.0.weight", "encoder_embed.out.weight"


def convert_encoder(
    icefall_state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Give tensors of icefall's model the names and shapes of our encoder's.

    Args:
        icefall_state: tensors of a model by their names.
        expected: the state of our encoder: what must come out. Its buffers, which icefall's model lacks, stay.

    Returns:
        The weights by our names, and the names there of tensors that nothing reads. Other parts of the model are left
        out.

    Raises:
        ValueError: a tensor is unknown or missing, or has another size than expected.
    """
    # icefall does not save how often whitening is applied
    buffers = {name: value for name, value in expected.items() if name.endswith(".probability")}
    weights, unused = dict[str, Tensor](), list[str]()
    for name, tensor in icefall_state.items():
        if re.fullmatch(UNUSED, name):
            unused.append(name)
        elif not name.startswith(OTHER_PARTS):
            matches = (re.fullmatch(pattern, name) for pattern, _ in ENCODER_RULES)
            expanded = (match.expand(new) for match, (_, new) in zip(matches, ENCODER_RULES, strict=True) if match)
            new_name = next(expanded, name)
            # convolutions over one place are linear maps here
            is_linear = tensor.ndim == 4 and new_name in expected and expected[new_name].ndim == 2
            weights[new_name] = (tensor.flatten(1) if is_linear else tensor).detach().clone()
    _check_fit(weights, {name: value for name, value in expected.items() if name not in buffers}, "encoder")
    return {**buffers, **weights}, unused


def convert_head(
    icefall_state: Mapping[str, Tensor], expected: Mapping[str, Tensor], order: Sequence[int]
) -> dict[str, Tensor]:
    """Give the tensors of icefall's heads the names of one of ours, and its order of tokens.

    Args:
        icefall_state: tensors of a model by their names; those of other parts are left out.
        expected: the state of our head: what must come out.
        order: (V,) icefall's id of each of our tokens.

    Raises:
        ValueError: a tensor is missing, or of another size.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in icefall_state.items():
        for pattern, template in HEAD_RULES:
            match = re.fullmatch(pattern, name)
            if match and match.expand(template) in expected:
                weights[match.expand(template)] = tensor.detach()
    _check_fit(weights, expected, "head")
    return {
        name: (tensor if name.startswith(NOT_OF_TOKENS) else tensor[list(order)]).clone()
        for name, tensor in weights.items()
    }


def _check_fit(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], part: str) -> None:
    shapes, needed = ({name: list(tensor.shape) for name, tensor in each.items()} for each in (weights, expected))
    misfits = [name for name in {**needed, **shapes} if shapes.get(name) != needed.get(name)]
    if misfits:
        first = misfits[0]
        raise ValueError(
            f"{len(misfits)} tensors do not fit the {part}: {first} has shape {shapes.get(first, 'none')} there and "
            f"{needed.get(first, 'none')} here; compare the options of the {part}, its kind and the tokenizer"
        )


def icefall_state(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a model, saved alone or under ``model``, by their names.

    Raises:
        ValueError: the file is damaged, holds none of these encoders, or more than tensors and plain data; icefall's
            export.py writes one of weights alone.
    """
    state = read_tensors(path)
    state = state.get("model", state) if isinstance(state, Mapping) else state
    if not isinstance(state, Mapping) or FIRST_FRONT_END not in state or FIRST_PROJECTION not in state:
        raise ValueError(f"it contains no Zipformer or Zapformer: {FIRST_FRONT_END} or {FIRST_PROJECTION} is missing")
    check_finite(state, path)
    return state


def encoder_weights(
    state: Mapping[str, Tensor], model_state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of an encoder, with a normalization that changes nothing, as icefall has none.

    Args:
        state: state dict of icefall's model.
        model_state: state dict of our recognizer; gives names and shapes.

    Returns:
        The weights by our names, and the names of tensors that nothing reads.

    Raises:
        ValueError: they do not fit.
    """
    encoder, unused = convert_encoder(state, part_of(model_state, "encoder"))
    shape = model_state["normalize.mean"].shape
    weights = {"normalize.mean": torch.zeros(shape), "normalize.inverse_std": torch.ones(shape)}
    return weights | {f"encoder.{name}": weight for name, weight in encoder.items()}, unused


def part_of(model_state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the state of a part of a recognizer, tensors of any shape, by the names within the part."""
    return {
        name.removeprefix(f"{part}."): tensor for name, tensor in model_state.items() if name.startswith(f"{part}.")
    }


def convert_weights(
    path: Path, expected: Mapping[str, Tensor], order: list[int]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of a whole model by our names, and the names of tensors that are left out.

    Args:
        path: of icefall's model.
        expected: state dict of our recognizer; gives names and shapes.
        order: of icefall's tokens in our tokenizer.

    Raises:
        ValueError: they do not fit.
    """
    state = icefall_state(path)
    weights, unused = encoder_weights(state, expected)
    head = convert_head(state, part_of(expected, "head"), order)
    return weights | {f"head.{name}": weight for name, weight in head.items()}, unused
