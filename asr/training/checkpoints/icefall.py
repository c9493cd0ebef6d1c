"""Reads models of icefall, and of the package ``zipformer``, which may be damaged or come from strangers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from asr.error_text import is_out_of_memory
from asr.models.icefall_weights import Converted, convert_encoder
from asr.safe_io import check_regular_file
from asr.training.checkpoints.content_checks import check_contents
from asr.training.checkpoints.file_checks import damage, why_unreadable

FIRST_FRONT_END, FIRST_PROJECTION = "encoder_embed.conv.0.weight", "encoder_embed.out.weight"


def icefall_state(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a model, saved alone or under ``model``, by their names.

    Raises:
        ValueError: there is no such file; it is damaged, holds more than tensors and plain data, or no Zipformer.
    """
    check_regular_file(path, sys.maxsize)
    try:
        if problem := damage(path):
            raise ValueError(f"it is damaged, or no model: {problem}")
        state = torch.load(path, map_location="cpu", weights_only=True)  # or the pickle could run code
        check_contents(state, path.stat().st_size)
    # a stranger's file can make the unpickler raise anything
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"it cannot be read, or holds more than tensors and plain data: {why_unreadable(error)}; of a training's "
            "own checkpoint, icefall's export.py makes a file that does not"
        ) from error
    state = state.get("model", state) if isinstance(state, Mapping) else state
    if not isinstance(state, Mapping) or FIRST_FRONT_END not in state or FIRST_PROJECTION not in state:
        raise ValueError(f"it holds no Zipformer: there is no {FIRST_FRONT_END}, or no {FIRST_PROJECTION}")
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()):
        raise ValueError("it holds more than tensors and their names")
    return state


def encoder_weights(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Converted]:
    """Return the weights of an encoder, with a normalization that changes nothing, as icefall has none; and the rest.

    Args:
        state: of icefall's model.
        own: state of our recognizer, whose names the weights get.

    Raises:
        ValueError: they do not fit.
    """
    converted = convert_encoder(state, part_of(own, "encoder"))
    shape = own["normalize.mean"].shape
    weights = {"normalize.mean": torch.zeros(shape), "normalize.inverse_std": torch.ones(shape)}
    return weights | {f"encoder.{name}": weight for name, weight in converted.weights.items()}, converted


def part_of(own: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the state of a part of a recognizer, by the names within the part."""
    return {name.removeprefix(f"{part}."): tensor for name, tensor in own.items() if name.startswith(f"{part}.")}
