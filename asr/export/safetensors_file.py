"""A recognizer's weights alone, for programs that build the modules themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from asr.errors import RunFailed
from asr.safe_io import write_new


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> str:
    """Write weights by their names, with the statistics of features among them, and return a line about the file.

    Raises:
        RunFailed: what was written is something else.
        OSError: the file cannot be written; names it.
    """
    # tied weights would be refused: the format has no two names for one tensor
    alone = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    write_new(path, save(alone, {"format": "pt"}))  # its own writer has errors of another kind
    read = load_file(path)
    if read.keys() != weights.keys() or not all(torch.equal(read[name], weights[name]) for name in weights):
        raise RunFailed(f"{path.name} does not hold the weights that were written; nothing was left of it")
    count = sum(tensor.numel() for tensor in weights.values())
    return f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(weights)} tensors, {count:,} numbers, as in the run"
