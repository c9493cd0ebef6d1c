"""Parts of a recognizer as graphs that other programs run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]
"""Runs the graph of a name."""


@dataclass(frozen=True)
class Graph:
    """A module to be traced.

    Attributes:
        name: of its file, without the ending.
        module: in evaluation mode; takes and returns tensors.
        example: inputs to trace it with, of sizes that are not 1 where an axis may have any size.
        inputs: their names.
        outputs: names of what it returns.
        axes: by the name of an input or output, axes of any size, and what they are called.
        metadata: what the runtime needs to know.
        quantized: whether ``quantize`` makes a second file of it.
    """

    name: str
    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]]
    metadata: Mapping[str, object] = field(default_factory=dict)
    quantized: bool = True


def traced(graph: Graph) -> Any:
    """Return the graph in TorchScript."""
    with torch.no_grad(), warnings.catch_warnings():
        # it warns of numbers that become constants, which are widths here, and that torch.export will replace it
        warnings.simplefilter("ignore")
        return torch.jit.trace(graph.module, graph.example, check_trace=False)


def torchscript_call(folder: Path, graphs: Sequence[Graph]) -> Call:
    """Return what runs the TorchScript files of a folder."""
    loaded = {graph.name: torch.jit.load(folder / f"{graph.name}.pt") for graph in graphs}

    def call(name: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            outputs = loaded[name](*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return call
