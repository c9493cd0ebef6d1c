"""What the parameters of a model are: which matrices its modules see in them, and what an optimizer makes of that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from optim.engine.blocks import DEFAULTS, parts_of, spec_of
from optim.engine.chain import Chain
from optim.engine.distributed import needs_whole, sees_matrices
from optim.engine.param_batch import Group, Part
from optim.engine.saved_state import named_parameters
from optim.transforms.orthogonalize import Orthogonalize

NOT_FOR_MUON = "not for Muon"
# what attention of transformers, timm and the like calls its projections and sizes
FUSED = ("c_attn", "qkv", "in_proj", "qkv_proj", "query_key_value", "Wqkv")
SINGLE = (
    *("q_proj", "k_proj", "v_proj", "query", "key", "value", "q", "k", "v"),
    *("q_attn", "q_lin", "k_lin", "v_lin", "linear_q", "linear_k", "linear_v"),
)
NUM_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
HEAD_DIM = ("head_dim", "head_size", "attention_head_size", "key_value_proj_dim")


def matrix_blocks(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what the parameters of a model are, by name, as far as its modules know.

    A module that has an attribute ``matrix_blocks``, a mapping of names to options, says it itself:
    ``{"in_proj.weight": {"blocks": 3, "heads": 8}}``; one further out is heard first. Known are:

    - attention: queries, keys and values are matrices of their own (Jordan et al. 2024), one per head; what follows the
      heads is one matrix. Torch's, and that of classes called so whose projections have the names of transformers;
    - convolutions: out × (in · kernel), in groups one for each; transposed ones too, but in × (out · kernel) in groups;
      depthwise ones are no matrix;
    - the gates of recurrent layers; linear maps that store their transpose (Conv1D of transformers);
    - embeddings, and output layers called ``lm_head``: matrices, but not for Muon.

    Reference:
        Jordan et al. 2024, "Muon", kellerjordan.github.io/posts/muon, for queries, keys and values. Whether one per
        head is best depends on the model: Zhang et al. 2026, "When and Why Grouping Attention Heads Accelerates Muon
        Optimization", arXiv:2605.08933.

    Examples:
        >>> optim.matrix_blocks(nn.MultiheadAttention(8, 2))["in_proj_weight"]
        {'blocks': 3, 'heads': 2, 'dims': (0,), 'why': 'nn.MultiheadAttention', 'shape': (24, 8)}
    """
    shapes = {name: tuple(param.shape) for name, param in model.named_parameters() if not is_lazy(param)}
    found: dict[str, dict[str, Any]] = {}
    for prefix, module in model.named_modules():
        said = getattr(module, "matrix_blocks", None)
        why = ("nn." if type(module).__module__.startswith("torch.nn.") else "") + type(module).__name__
        for local, spec in (said if isinstance(said, Mapping) else _known(module)).items():
            name = f"{prefix}.{local}" if prefix else local
            if len(shapes.get(name, ())) > 1 and name not in found:
                found[name] = spec_of({"why": why, **spec, "shape": shapes[name]}, name)
    return found


def _known(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what the parameters of a module are that does not say it."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.MultiheadAttention):
        single = {f"{x}_proj_weight": {"heads": module.num_heads} for x in "qkv"}
        return {"in_proj_weight": {"blocks": 3, "heads": module.num_heads}, **single}
    if isinstance(module, nn.modules.conv._ConvNd):
        # depthwise, rows have nothing to do with each other
        spec: dict[str, Any] = {"dims": (1,)} if module.transposed else {"dims": (0,)}
        spec = {"blocks": 0 if module.groups == module.in_channels else module.groups} if module.groups > 1 else spec
        return dict.fromkeys(("weight", "weight_v", "parametrizations.weight.original1"), spec)
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        named = ((name, param) for name, param in module.named_parameters() if "weight_ih" in name or "_hh" in name)
        return {name: {"blocks": len(param) // module.hidden_size} for name, param in named}
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return {"weight": {"why": f"nn.{type(module).__name__}: {NOT_FOR_MUON}"}}
    if type(module).__name__ == "Conv1D" and isinstance(weight, Tensor):
        return {"weight": {"dims": (1,)}}
    return {"lm_head.weight": {"why": f"output layer: {NOT_FOR_MUON}"}, **_of_attention(module)}


def _of_attention(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what the projections of attention are, by the conventions of transformers."""
    heads, width = (
        next((x for name in names if isinstance(x := getattr(module, name, None), int)), 0)
        for names in (NUM_HEADS, HEAD_DIM)
    )
    found: dict[str, dict[str, Any]] = {}
    for name, child in module.named_children() if re.search("attention|attn", type(module).__name__, re.I) else ():
        weight, fused = child._parameters.get("weight"), name in FUSED
        if weight is None or weight.dim() != 2 or not (fused or name in SINGLE):
            continue
        axis = int(type(child).__name__ == "Conv1D")
        rows = weight.shape[axis]
        # keys and values may have fewer heads
        count = rows // (width or max(1, rows // (3 if fused else 1) // max(1, heads)))
        shared = heads if fused and heads and count % heads == 0 else count
        if count and rows % count == 0:
            found[f"{name}.weight"] = {"blocks": count // shared, "heads": shared, "dims": (axis,)}
    return found


def explain(optimizer: Optimizer, model: nn.Module | None = None, file: TextIO | None = None) -> None:
    """Print how an optimizer treats each parameter: as how many matrices of which shape, by which rule, and why.

    Args:
        optimizer: also one of several, or one that steps in the backward pass.
        model: of the parameters: names those that the optimizer has no names of, and says what they would be with
            ``blocks="auto"``.
        file: to print to; None for standard output.

    Examples:
        >>> model = nn.MultiheadAttention(8, 2, bias=False)
        >>> optim.explain(optim.grouped(optim.Muon, blocks="auto")(model))
        parameter        shape  optimizer  matrices  why
        in_proj_weight   24×8   Muon       6 × 4×8   blocks=3 heads=2 from nn.MultiheadAttention
        out_proj.weight  8×8    Muon       1 × 8×8   as it is
    """
    names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()} if model is not None else {}
    known = matrix_blocks(model) if model is not None else {}
    stepped: Any = getattr(optimizer, "optimizer", optimizer)
    table = [("parameter", "shape", "optimizer", "matrices", "why")]
    for member in getattr(stepped, "optimizers", [stepped]):
        for name, param, group in named_parameters(member):
            shown = name if "param_names" in group else names.get(param, name)
            seen, why = _seen(member, name, param, group)
            why = why or (f"as it is; blocks='auto': {_words(known[shown])}" if shown in known else "as it is")
            table.append((shown, _times(param.shape), type(member).__name__, seen, why))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(map(str.ljust, row, widths)).rstrip(), file=file)


def _seen(member: Optimizer, name: str, param: Tensor, group: Group) -> tuple[str, str]:
    """Return the matrices that a parameter is, and who says so, if anybody does."""
    if not isinstance(member, Chain):
        return "-", "not of this package"
    if not sees_matrices(member.transforms, group):
        return "-", "each element alone"
    active = needs_whole(member.transforms, group)
    specs, shape = group.get("blocks", {}), param.shape
    why = _words(specs.get(name) or specs[""]) if specs.keys() & {name, ""} else ""
    parts: Sequence[Any] = parts_of(name, shape, group)
    if not parts and len(shape) > 2 and any(isinstance(transform, Orthogonalize) for transform in active):
        axis = -2 if group["stacked_matrices"] else 0
        rest = shape[axis + 1 :].numel()
        parts = [Part((), 0, 0, shape.numel() // shape[axis] // rest, torch.Size((shape[axis], rest)))]
    shapes = [(max(1, part.num_blocks), part.shape) for part in parts] or [(1, shape)]
    seen = ", ".join(f"{count} × {_times(block)}" if len(block) > 1 else "none" for count, block in shapes)
    return seen, why if len(shape) > 1 else "a vector"


def _words(spec: Mapping[str, Any]) -> str:
    """Return what a parameter is and who says so: ``blocks=3 heads=8 from nn.MultiheadAttention``."""
    given = [f"{key}={spec[key]}" for key, default in DEFAULTS.items() if spec[key] != default]
    return " ".join([*given, "from", spec.get("why", "its group")]) if given else spec.get("why", "its group")


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"
