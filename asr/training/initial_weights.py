"""Starts training from the weights of another model that fit by name and shape; freezes parameters.

A tensor of the new model is *taken* from the source or *new*; one of the source alone is *left*. A new one of another
vocabulary starts with the source's numbers for the tokens that both vocabularies have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from werdict.files import write_whole

TAKEN, NEW, LEFT = "taken", "new", "left"
OTHER_SHAPE = "in the source of shape"


@dataclass(frozen=True)
class TensorMatch:
    """Whether a tensor was taken from the source.

    Attributes:
        name: name of the tensor.
        shape: shape in the new model, or in the source if only that has it.
        outcome: ``taken``, ``new`` or ``left``.
        reason: why it was not taken.
    """

    name: str
    shape: tuple[int, ...]
    outcome: str
    reason: str = ""


def match_tensors(
    model_state: Mapping[str, Tensor], source: Mapping[str, Tensor], of_vocabulary: Collection[str]
) -> list[TensorMatch]:
    """Compare the names and shapes of the tensors of both models.

    Args:
        model_state: weights of the new model, whose values are not read.
        source: weights of the source.
        of_vocabulary: names of tensors whose rows mean other tokens than in the source.
    """
    matches = []
    for name, tensor in model_state.items():
        shape, source_tensor = tuple(tensor.shape), source.get(name)
        if source_tensor is None:
            reason = "not in the source"
        elif name in of_vocabulary:
            reason = "another vocabulary"
        elif source_tensor.shape != tensor.shape or source_tensor.is_floating_point() != tensor.is_floating_point():
            reason = f"{OTHER_SHAPE} {list(source_tensor.shape)}"
        else:
            reason = ""
        matches.append(TensorMatch(name, shape, NEW if reason else TAKEN, reason))
    matches += [
        TensorMatch(name, tuple(source[name].shape), LEFT, "not in the new model")
        for name in source
        if name not in model_state
    ]
    return matches


def take(model: nn.Module, source: Mapping[str, Tensor], decided: Iterable[TensorMatch]) -> None:
    """Copy the tensors of a source that were decided to be taken into a model, which has them in the same shapes."""
    model.load_state_dict({match.name: source[match.name] for match in decided if match.outcome == TAKEN}, strict=False)


def take_tokens(
    model: nn.Module,
    source: Mapping[str, Tensor],
    axes: Mapping[str, int],
    pieces: Sequence[str],
    source_pieces: Sequence[str],
) -> int:
    """Copy what a source knows of the tokens that both vocabularies have; return how many these are.

    Args:
        model: the new one.
        source: weights of the source; those of other shapes, beyond the axis of tokens, are left out.
        axes: of tensors by name, along which there is a number or a row for each token.
        pieces: tokens of the new model, in the order of their ids.
        source_pieces: tokens of the source.
    """
    ids = {piece: number for number, piece in enumerate(source_pieces)}
    shared = [(number, ids[piece]) for number, piece in enumerate(pieces) if piece in ids]
    to_ids, from_ids = torch.tensor(shared, dtype=torch.long).reshape(-1, 2).unbind(1)
    state = model.state_dict()  # shares its memory with the model
    for name, axis in axes.items():
        if name in source and source[name].ndim == state[name].ndim:
            rows, source_rows = state[name].movedim(axis, 0), source[name].movedim(axis, 0)
            if rows.shape[1:] == source_rows.shape[1:]:
                rows[to_ids] = source_rows[from_ids].to(rows.dtype)
    return len(shared)


def summary(decided: Sequence[TensorMatch]) -> str:
    """Return how many tensors were taken, in one line."""
    num = Counter(match.outcome for match in decided)
    rest = "".join(f", {num[kind]} {kind}" for kind in (NEW, LEFT) if num[kind])
    return f"{num[TAKEN]} of {len(decided) - num[LEFT]} tensors taken{rest}"


def write_matches(path: Path, decided: Iterable[TensorMatch]) -> None:
    """Write a table with a line for each tensor: its name, shape, outcome (``fate``), and the reason."""
    lines = (f"{match.name}\t{list(match.shape)}\t{match.outcome}\t{match.reason}\n" for match in decided)
    write_whole(path, "tensor\tshape\tfate\treason\n" + "".join(lines))


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Train no parameter in whose name one of the regular expressions is found.

    Raises:
        ValueError: an expression is malformed, or found in no name, or nothing is left to train.
    """
    for pattern in patterns:
        try:
            frozen = [parameter for name, parameter in model.named_parameters() if re.search(pattern, name)]
        except re.error as error:  # no ValueError, as which a mistake of the user is told by its key
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        if not frozen:
            some = [name for name, _ in model.named_parameters()]
            raise ValueError(f"{pattern!r} is found in no parameter's name; names are {some[0]} to {some[-1]}")
        for parameter in frozen:
            parameter.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
            module.eval()  # its statistics stand still too
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{list(patterns)} leave no parameter to train")
