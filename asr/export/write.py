"""The files of an export, each checked against the recognizer when it is written."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.errors import RunFailed
from asr.export.graph import Graph, torchscript_call, traced
from asr.export.kinds import Export
from asr.export.verify import check_close, check_equal
from asr.features.global_norm import GlobalNorm
from asr.safe_io import write_new

PACKAGES = {
    "onnx": ("onnx", "onnxruntime"),
    "torch": (),
    "safetensors": ("safetensors",),
    "huggingface": ("transformers",),
}
DIFFERS = "log-probabilities differ from PyTorch's by at most"


def check_packages(format: str) -> None:
    """Refuse a format whose packages are not installed.

    Raises:
        RunFailed: they are not.
    """
    if missing := [name for name in PACKAGES[format] if find_spec(name) is None]:
        raise RunFailed(
            f"format={format} needs the packages of the extra export, of which {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: python3 scripts/setup.py export, or pip install "
            "'werdict[export]'"
        )


def write_torchscript(export: Export, norm: GlobalNorm, folder: Path) -> Iterator[str]:
    """Write TorchScript files, and yield a line about them.

    Raises:
        RunFailed: they do not give what the recognizer gives.
        OSError: a file cannot be written; names it.
    """
    for graph in export.graphs:
        content = io.BytesIO()  # torch would write the file itself, and abort the program if the disk is full
        torch.jit.save(traced(graph), content)
        write_new(folder / f"{graph.name}.pt", content.getvalue())
    difference = check_equal(export, torchscript_call(folder, export.graphs), norm)
    yield _line([folder / f"{graph.name}.pt" for graph in export.graphs], f"{DIFFERS} {difference:.1e}")


def write_onnx_files(export: Export, norm: GlobalNorm, folder: Path, quantize: bool) -> Iterator[str]:
    """Write ONNX files, and a second set of eight bits if ``quantize``; yield a line about each set.

    Raises:
        RunFailed: they do not give what the recognizer gives.
        OSError: a file cannot be written; names it.
    """
    # here, because the packages are an extra
    from asr.export.onnx_files import onnx_call, write_int8, write_onnx

    def file_of(graph: Graph, ending: str = ".onnx") -> Path:
        return folder / f"{graph.name}{ending}"

    def small(graph: Graph) -> Path:
        return file_of(graph, ".int8.onnx" if graph.quantized else ".onnx")

    for graph in export.graphs:
        write_onnx(graph, file_of(graph))
    difference = check_equal(export, onnx_call(export.graphs, file_of), norm)
    yield _line([*map(file_of, export.graphs)], f"{DIFFERS} {difference:.1e}")
    if quantize:
        for graph in export.graphs:
            if graph.quantized:
                write_int8(file_of(graph), small(graph))
        change = check_close(export, onnx_call(export.graphs, small), norm)
        yield _line([*map(small, export.graphs)], f"changes probabilities by {change:.1%} on average")


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> str:
    """Write weights of any shape by their names, with the statistics of features; return a line about the file.

    Raises:
        OSError: the file cannot be written; names it.
    """
    # here, because the package is an extra
    from safetensors.torch import save

    # tied weights would be refused: the format has no two names for one tensor
    alone = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    write_new(path, save(alone, {"format": "pt"}))  # its own writer has errors of another kind
    count = sum(tensor.numel() for tensor in weights.values())
    return f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(weights)} tensors, {count:,} numbers, as in the run"


def _line(files: Sequence[Path], result: str) -> str:
    size = sum(file.stat().st_size for file in files) / 1e6
    return f"{', '.join(file.name for file in files)}: {size:.1f} MB, {result}"


def write_test_wav(folder: Path, audio: NDArray[np.float32], rate_hz: int, text: str) -> None:
    """Write samples, (N,), as a new folder's ``0.wav``, with their transcript."""
    content = io.BytesIO()
    soundfile.write(content, np.clip(audio, -1, 1), rate_hz, "PCM_16", format="WAV")
    write_new(folder / "0.wav", content.getvalue())
    write_new(folder / "trans.txt", f"0.wav {text}\n")
