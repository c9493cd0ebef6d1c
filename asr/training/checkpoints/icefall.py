"""Reads models of icefall, and of the package ``zipformer``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from asr.models.icefall_weights import Converted, convert_encoder, convert_head
from asr.models.pretrained.files import check_finite, read_tensors

FIRST_FRONT_END, FIRST_PROJECTION = "encoder_embed.conv.0.weight", "encoder_embed.out.weight"


def icefall_state(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a model, saved alone or under ``model``, by their names.

    Raises:
        ValueError: the file is damaged, holds no Zipformer, or more than tensors and plain data; icefall's export.py
            writes one of weights alone.
    """
    state = read_tensors(path)
    state = state.get("model", state) if isinstance(state, Mapping) else state
    if not isinstance(state, Mapping) or FIRST_FRONT_END not in state or FIRST_PROJECTION not in state:
        raise ValueError(f"it contains no Zipformer: {FIRST_FRONT_END} or {FIRST_PROJECTION} is missing")
    check_finite(state, path)
    return state


def encoder_weights(
    state: Mapping[str, Tensor], model_state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Converted]:
    """Return the weights of an encoder, with a normalization that changes nothing, as icefall has none; and the rest.

    Args:
        state: state dict of icefall's model.
        model_state: state dict of our recognizer; gives names and shapes.

    Raises:
        ValueError: they do not fit.
    """
    converted = convert_encoder(state, part_of(model_state, "encoder"))
    shape = model_state["normalize.mean"].shape
    weights = {"normalize.mean": torch.zeros(shape), "normalize.inverse_std": torch.ones(shape)}
    return weights | {f"encoder.{name}": weight for name, weight in converted.weights.items()}, converted


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
    weights, converted = encoder_weights(state, expected)
    head = convert_head({name: state[name] for name in converted.other}, part_of(expected, "head"), order)
    return weights | {f"head.{name}": weight for name, weight in head.items()}, [*converted.unused]
