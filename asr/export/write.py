"""Whether an export gives what the recognizer gives.

B batch, T frames, F mel bins, V vocabulary.
"""

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

from asr.export.graphs import Call, Export, Graph, torchscript_call, traced
from asr.features.log_mel import GlobalNorm
from werdict.errors import RunFailed
from werdict.files import write_new

SIZES = ((1, 3), (1, 7), (2, 9), (1, 16), (3, 64), (2, 157), (1, 333), (3, 1000))  # utterances, frames of the longest
LARGEST_DIFFERENCE = 1e-5  # relative to the largest log-probability of a frame: both are rounded to 32 bits
LARGEST_CHANGE = 0.1  # of probabilities in eight bits, on average


def check_equal(export: Export, call: Call, norm: GlobalNorm) -> float:
    """Return the largest difference in log-probabilities between a recognizer and its graphs.

    Args:
        norm: of the recognizer, from whose statistics features are drawn.

    Raises:
        RunFailed: it is more than rounding explains, or another number of frames comes out.
    """
    largest = []
    for exported, expected in _trials(export, call, norm):
        difference = (exported - expected).abs().amax(dim=-1)
        scale = expected.abs().amax(dim=-1).clamp(min=1.0)
        largest.append(torch.stack([difference.max(), (difference / scale).max()]))
    absolute, relative = torch.stack(largest).amax(dim=0).tolist()  # NaN if any is
    if not relative <= LARGEST_DIFFERENCE:
        raise RunFailed(
            f"log-probabilities of the export differ from the recognizer's by {absolute:.1e}, {relative:.1e} of the "
            f"largest in a frame, where {LARGEST_DIFFERENCE} are allowed; nothing was left of it. If it is nan, the "
            "recognizer's own are not finite: choose another checkpoint. Else please report this, with config.yaml"
        )
    return absolute


def check_close(export: Export, call: Call, norm: GlobalNorm) -> float:
    """Return by how much probabilities change in a graph of eight bits: half the L1 distance, the mean of all frames.

    Raises:
        RunFailed: it is more than 0.1.
    """
    changes = [(f.exp() - e.exp()).abs().sum(dim=-1) / 2 for f, e in _trials(export, call, norm)]
    change = float(torch.cat(changes).mean())
    if not change <= LARGEST_CHANGE:
        raise RunFailed(
            f"in eight bits the probabilities of tokens change by {change:.0%} on average, more than "
            f"{LARGEST_CHANGE:.0%}; nothing was left of the export. Leave quantize out"
        )
    return change


def _trials(export: Export, call: Call, norm: GlobalNorm) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities (N, V) of valid frames, of the graphs and of the recognizer."""
    generator = torch.Generator().manual_seed(0)
    for size, longest in SIZES:
        noise = torch.randn(size, longest, len(norm.mean), generator=generator)
        num_frames = torch.randint(max(1, longest // 2), longest + 1, (size,), generator=generator)
        num_frames[0] = longest
        features = norm.mean + noise / norm.inverse_std
        with torch.no_grad():
            expected, expected_lengths = export.expected(features, num_frames)
        exported, lengths = export.log_probs(call, features, num_frames)
        if not torch.equal(lengths, expected_lengths):
            raise RunFailed(
                f"utterances of {num_frames.tolist()} frames become {lengths.tolist()} in the export, "
                f"{expected_lengths.tolist()} in the recognizer; nothing was left of it"
            )
        valid = torch.arange(expected.shape[1]) < lengths[:, None]
        if valid.any():
            yield exported[:, : valid.shape[1]][valid], expected[valid]


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
