"""Graphs in the ONNX format, and onnxruntime to run them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor

from asr.export.graph import Call, Graph
from asr.safe_io import write_new

OPSET = 17  # that of LayerNorm; runtimes on small devices lag behind


def write_onnx(graph: Graph, path: Path) -> None:
    """Write a graph.

    Raises:
        OSError: it cannot be written; names the file.
    """
    content = io.BytesIO()  # torch would write the file itself, and not say why it cannot
    with torch.no_grad(), warnings.catch_warnings():
        # see `traced`
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.module,
            graph.example,
            content,  # type: ignore[arg-type]  # annotated as a path; the exporter of TorchScript takes files too
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_axes={name: dict(axes) for name, axes in graph.axes.items()},
            opset_version=OPSET,
            # torch.export takes six times as long, and writes as many guards for sizes as operations
            dynamo=False,
        )
    model = onnx.load_from_string(content.getvalue())
    for key, value in graph.metadata.items():
        model.metadata_props.add(key=key, value=str(value))
    write_new(path, model.SerializeToString())


def onnx_session(path: Path) -> onnxruntime.InferenceSession:
    """Return what runs a file on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def onnx_call(graphs: Sequence[Graph], file_of: Callable[[Graph], Path]) -> Call:
    """Return what runs the files of graphs."""
    sessions = {graph.name: onnx_session(file_of(graph)) for graph in graphs}

    def call(name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
        session = sessions[name]
        names = [one.name for one in session.get_inputs()]
        given = {key: tensor.numpy() for key, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(None, given)]

    return call
