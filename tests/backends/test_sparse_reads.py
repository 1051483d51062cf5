"""Which constants data decide what to read of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from treadle.backends.program import read_program
from treadle.frontends.onnx import import_model
from treadle.ir import lower

ROWS, WIDTH = 4096, 512
TABLE = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) % 251


def embedding(*nodes: onnx.NodeProto, result: tuple[int, ...]) -> onnx.ModelProto:
    """A model of a table `table` and indices `i`, and a number `x`, with the nodes behind."""
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, [1, 8]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)]
    graph = helper.make_graph(list(nodes), "embedding", inputs, outputs, [numpy_helper.from_array(TABLE, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LOOKUP = helper.make_node("Gather", ["table", "i"], ["rows"])
SCALED = helper.make_node("Mul", ["table", "x"], ["scaled"])
SUM = helper.make_node("ReduceSum", ["scaled"], ["sum"], keepdims=0)
DOUBLE = helper.make_node("Add", ["rows", "rows"], ["y"])
WITH_SUM = helper.make_node("Add", ["rows", "sum"], ["y"])


@pytest.mark.parametrize("target", ["avx2", "sm_80"])
@pytest.mark.parametrize(
    ("nodes", "sparse"),
    [
        pytest.param([LOOKUP, DOUBLE], True, id="rows of data"),
        pytest.param([LOOKUP, SCALED, SUM, WITH_SUM], False, id="all elements, too"),
    ],
)
def test_constants_are_sparse_where_data_decide_what_is_read(
    nodes: list[onnx.NodeProto], sparse: bool, target: str
) -> None:
    module = import_model(embedding(*nodes, result=(1, 8, WIDTH)).SerializeToString())
    lower(module, target)
    sizes = [(each.type.get_shape(), each.sparse) for each in read_program(module).constants]
    assert ((ROWS * WIDTH,), sparse) in sizes
    assert ((ROWS * WIDTH,), not sparse) not in sizes
