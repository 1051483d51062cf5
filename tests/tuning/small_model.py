"""A model whose search takes seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_model(path: Path, rows: int = 20) -> Path:
    """softmax(relu(x w)), whose product stands twice: two groups of one kind and one of another."""
    generator = np.random.default_rng(0)
    weights = [numpy_helper.from_array(generator.standard_normal((48, 48)).astype(np.float32), n) for n in "vw"]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 48]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
