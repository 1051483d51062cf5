"""Integers that are computed from shapes and leave their type wrap, as all integers of a model do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import Dim


@pytest.mark.parametrize(
    ("operator", "dtype", "number"),
    [("Add", np.int64, 2**63 - 1), ("Sub", np.int64, -(2**63)), ("Mul", np.int64, 2**62), ("Mul", np.int32, 2**30)],
)
def test_integers_of_a_call_wrap(operator: str, dtype: type, number: int, tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.array([number], dtype), "c")
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["i"], to=to),
        helper.make_node(operator, ["c", "i"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", to, [1])
    graph = helper.make_graph(nodes, "wrap", [x], [y], [constant])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    model = treadle.compile(path, "cpu", shapes={"x": (Dim("n", 1, 9),)})
    rule = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[operator]
    for n in (1, 2, 9):
        with np.errstate(over="ignore"):
            expected = rule(np.array([number], dtype), np.array([n], dtype))
        np.testing.assert_array_equal(model(np.zeros(n, np.float32))[0], expected)
