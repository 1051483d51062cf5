"""What is compared with itself is stored: computed at two reads, it may be rounded in two ways."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from treadle import compile as compile_model
from treadle.dialects.graph import ArgReductionOp, BinaryOp, ComputeOp, FusedOp, ReductionOp, UnaryOp
from treadle.ir import lower
from treadle.passes.graph.fusion_cost import is_compared, rounds


def _mish(graph: Graph, x: SSAValue) -> SSAValue:
    soft = graph.add(UnaryOp("log", graph.add(UnaryOp("exp", x))))
    return graph.add(BinaryOp("mul", x, graph.add(UnaryOp("tanh", soft))))


def _groups(graph: Graph, *results: SSAValue) -> int:
    module = graph.module(*results)
    lower(module, to="fuse")
    return sum(isinstance(op, FusedOp) for op in module.walk())


@pytest.mark.parametrize("extent", [1, 2, 7])
def test_the_operand_of_an_argmax_is_stored_if_it_rounds(extent: int) -> None:
    graph = Graph(np.zeros((8, extent, 16), np.float32))
    assert _groups(graph, graph.add(ArgReductionOp("max", _mish(graph, graph[0]), 1, True))) == 2
    graph = Graph(np.zeros((8, extent, 16), np.float32))
    rounded = graph.add(UnaryOp("abs", graph.add(UnaryOp("neg", graph[0]))))
    assert _groups(graph, graph.add(ArgReductionOp("max", rounded, 1, True))) == 1
    graph = Graph(np.zeros((8, extent, 16), np.float32))
    assert _groups(graph, graph.add(ReductionOp("max", _mish(graph, graph[0]), [1], True))) == 1


def test_what_follows_without_rounding_is_compared_as_well() -> None:
    graph = Graph(np.zeros((8, 2, 16), np.float32))
    y = _mish(graph, graph[0])
    positions = graph.add(ArgReductionOp("min", graph.add(UnaryOp("neg", y)), 1, True))
    module = graph.module(positions, y)
    lower(module, to="define")
    computes = [op for op in module.walk() if isinstance(op, ComputeOp)]
    found = {op.operators.data if op.operators else "": (rounds(op), is_compared(op.result)) for op in computes}
    assert found["exp log tanh mul"] == (True, True)
    assert found["neg"] == (False, True)
    assert found["arg_reduction_min"] == (False, False)


@pytest.mark.parametrize("last", [False, True])
def test_compiled_positions_are_those_of_the_largest(last: bool) -> None:
    x = np.random.default_rng(0).standard_normal((8, 1, 3, 67)).astype(np.float32)
    for shape in (x.shape, (8, 3, 67)):
        graph = Graph(x.reshape(shape))
        y = _mish(graph, graph[0])
        with compile_model(graph.module(graph.add(ArgReductionOp("max", y, 1, True, last)), y)) as model:
            positions, values = model(x.reshape(shape))
        np.testing.assert_array_equal(np.take_along_axis(values, positions, 1), values.max(1, keepdims=True))
