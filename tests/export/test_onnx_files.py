"""Matrix products in eight bits: each row is rounded for itself."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra export)")

import onnx
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

from asr.export.onnx_files import OPSET, onnx_session, write_int8

K, M = 24, 10


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


WEIGHT = normal(K, M)


def write(path, *nodes, weights):
    shapes = {"x": [None, None, K], "y": [None, None, M]}
    x, y = (make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = make_graph(nodes, "graph", [x], [y], [from_array(value, name) for name, value in weights.items()])
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", OPSET)], ir_version=8), path)


def run(path, x):
    (y,) = onnx_session(path).run(None, {"x": x})
    return y


@pytest.fixture
def product(tmp_path):
    """Return a function x → x · W in eight bits."""
    write(tmp_path / "float.onnx", make_node("MatMul", ["x", "w"], ["y"]), weights={"w": WEIGHT})
    write_int8(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    return lambda x: run(tmp_path / "int8.onnx", x)


def test_a_product_is_that_of_the_rounded_numbers(product):
    x = normal(2, 5, K, seed=1)
    of_row, of_output = np.abs(x).max(-1, keepdims=True) / 127, np.abs(WEIGHT).max(0) / 127
    rounded = (np.floor(x / of_row + 0.5) * of_row) @ (np.rint(WEIGHT / of_output) * of_output)
    assert product(x) == pytest.approx(rounded, abs=1e-5)
    assert np.abs(product(x) - x @ WEIGHT).max() < 0.2


def test_a_row_is_rounded_alike_whatever_is_beside_it(product):
    x = normal(1, 3, K, seed=1)
    beside = np.concatenate([x, 1e4 * x[:, :1]], axis=1)
    assert (product(beside)[:, :3] == product(x)).all()
    assert product(1e4 * x) == pytest.approx(1e4 * product(x), rel=1e-3)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_rows_of_any_size_have_finite_products(product, size):
    x = np.full((1, 1, K), size, np.float32)
    assert product(x) == pytest.approx(x @ WEIGHT, abs=1e-12 + 0.1 * size)


def test_weights_that_two_products_share_are_kept_once_and_others_stay(tmp_path):
    nodes = [
        make_node("MatMul", ["x", "square"], ["a"]),
        make_node("MatMul", ["a", "square"], ["b"]),
        make_node("Add", ["b", "shift"], ["c"]),
        make_node("MatMul", ["c", "w"], ["y"]),
    ]
    weights = {"square": normal(K, K, seed=2), "shift": np.ones(K, np.float32), "w": WEIGHT}
    write(tmp_path / "float.onnx", *nodes, weights=weights)
    write_int8(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    kept = {one.name: one.data_type for one in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert {name for name, kind in kept.items() if kind == TensorProto.UINT8} == {"square_int8", "w_int8", "int8_zero"}
    assert "shift" in kept
    assert not {"square", "w"} & kept.keys()
    x = normal(2, 4, K, seed=1)
    float_y = run(tmp_path / "float.onnx", x)
    assert np.abs(run(tmp_path / "int8.onnx", x) - float_y).max() < 0.05 * np.abs(float_y).max()
