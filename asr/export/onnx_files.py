"""Graphs in the ONNX format, in 32 bits and with the weights of matrix products in eight, and onnxruntime to run them.

N rows, K inputs, M outputs of a product x (…, N, K) · W (K, M).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import GraphProto, NodeProto, TensorProto
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array
from torch import Tensor

from asr.export.graphs import Call, Graph
from werdict.files import write_new

OPSET = 17  # that of LayerNorm; runtimes on small devices lag behind
LARGEST = 127  # of the rounded numbers, with either sign
CONSTANTS = {
    "int8_largest": np.float32(LARGEST),
    "int8_least": np.float32(1e-20),  # of the largest in a row: rows of zeros stay zeros
    "int8_shift": np.float32(LARGEST + 1.5),  # casts cut off what follows the point
    "int8_zero": np.uint8(LARGEST + 1),
}


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
        names = [argument.name for argument in session.get_inputs()]
        feeds = {key: tensor.numpy() for key, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(None, feeds)]

    return call


def write_int8(source: Path, path: Path) -> None:
    """Write a graph again, with the weights of its matrix products in eight bits, a scale for each output.

    What they are multiplied by is rounded to eight bits as it runs, with a scale for each row: a frame is rounded alike
    whatever else is in its utterance, and a loud one takes no precision from others. onnxruntime's
    ``quantize_dynamic`` has one scale for all rows; of 100 texts of digits it changed 1 to 3, in streams and whole, and
    this none.

    Raises:
        OSError: it cannot be written; names the file.
    """
    model = onnx.load(source)
    graph = model.graph
    floats = {tensor.name: tensor for tensor in graph.initializer}
    rounded: dict[str, TensorProto] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        name = node.input[1] if node.op_type == "MatMul" else ""
        if name not in floats or len(floats[name].dims) != 2:
            nodes.append(node)
            continue
        if f"{name}_int8" not in rounded:
            rounded |= {tensor.name: tensor for tensor in _rounded(name, to_array(floats[name]))}
        nodes += _product(node)
    _replace(graph, nodes, rounded)
    write_new(path, model.SerializeToString())


def _rounded(name: str, weight: np.ndarray) -> Iterator[TensorProto]:
    """Yield W in eight bits, and what a product's outputs are multiplied by, (M,)."""
    largest = np.maximum(np.abs(weight).max(axis=0), np.finfo(np.float32).tiny)
    # without sign, as x: processors with AVX2 alone add signed products two by two in 16 bits, which overflow
    # (onnxruntime 1.32)
    yield from_array((np.rint(weight / largest * LARGEST) + LARGEST + 1).astype(np.uint8), f"{name}_int8")
    yield from_array((largest / LARGEST**2).astype(np.float32), f"{name}_scale")


def _product(node: NodeProto) -> Iterator[NodeProto]:
    """Yield what replaces x · W."""
    x, weight = node.input
    prefix = f"{node.output[0]}_int8"  # of names, which occur once
    yield make_node("Abs", [x], [f"{prefix}_abs"])
    yield make_node("ReduceMax", [f"{prefix}_abs"], [f"{prefix}_max"], axes=[-1], keepdims=1)
    yield make_node("Max", [f"{prefix}_max", "int8_least"], [f"{prefix}_row"])
    yield make_node("Div", ["int8_largest", f"{prefix}_row"], [f"{prefix}_times"])
    yield make_node("Mul", [x, f"{prefix}_times"], [f"{prefix}_scaled"])
    yield make_node("Add", [f"{prefix}_scaled", "int8_shift"], [f"{prefix}_shifted"])
    yield make_node("Cast", [f"{prefix}_shifted"], [f"{prefix}_x"], to=TensorProto.UINT8)
    yield make_node("MatMulInteger", [f"{prefix}_x", f"{weight}_int8", "int8_zero", "int8_zero"], [f"{prefix}_sums"])
    yield make_node("Cast", [f"{prefix}_sums"], [f"{prefix}_floats"], to=TensorProto.FLOAT)
    yield make_node("Mul", [f"{prefix}_floats", f"{prefix}_row"], [f"{prefix}_rows"])
    yield make_node("Mul", [f"{prefix}_rows", f"{weight}_scale"], [node.output[0]])


def _replace(graph: GraphProto, nodes: list[NodeProto], rounded: dict[str, TensorProto]) -> None:
    """Put nodes and rounded weights in their places, and drop the weights that no node reads any longer."""
    if rounded:
        rounded |= {name: from_array(np.array(value), name) for name, value in CONSTANTS.items()}
    read = {name for node in nodes for name in node.input} | {tensor.name for tensor in graph.output}
    used = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*used, *rounded.values()])
