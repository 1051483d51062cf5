"""graph-decompose keeps values, and leaves definitions of at most one reduction, or rows of one kernel."""

import numpy as np
import pytest
from xdsl.dialects.func import FuncOp

from tests.helpers.graphs import Graph, assert_same_values, operators, random, run_passes
from treadle.dialects.graph import LayerNormOp, Operator, PoolOp, ReductionOp, SoftmaxOp, definition
from treadle.dialects.graph.compute import ComputeOp, ReduceOp
from treadle.passes.graph.graph_decompose import GraphDecomposePass
from treadle.schedules.row_analysis import MOST_COLUMNS


def test_values_and_number_of_reductions() -> None:
    graph = Graph(random(2, 6, 9, 10))
    x = graph[0]
    results = [
        graph.add(SoftmaxOp(x, 1)),
        graph.add(LayerNormOp(x, graph.constant(random(9, 10)), graph.constant(random(9, 10, seed=1)), 2, 1e-5)),
        graph.add(ReductionOp("mean", x, [1, 3], False)),
        graph.add(PoolOp("avg", x, [3, 3], [2, 2], [1] * 4, [1, 1])),
        graph.add(PoolOp("avg", x, [3, 3], [2, 2], [1] * 4, [1, 1], ceil=True, count_pad=True)),
        graph.add(PoolOp("avg", x, [3, 3], [1, 1], [1, 0, 1, 0], [1, 1])),
        graph.add(PoolOp("avg", x, [3, 3], [1, 1], [0] * 4, [1, 1])),
        graph.add(PoolOp("max", x, [3, 3], [1, 1], [1] * 4, [1, 1])),
    ]
    module = assert_same_values(graph, results, [GraphDecomposePass(rows=True)])
    (function,) = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    for op in function.body.block.ops:
        compute = definition(op) if isinstance(op, Operator) else op
        if isinstance(compute, ComputeOp):
            assert sum(isinstance(inner, ReduceOp) for inner in compute.walk()) <= 1


def test_large_inputs_of_softmax_do_not_overflow() -> None:
    graph = Graph(np.array([[1e4, 1e4, -1e4]], np.float32))
    assert_same_values(graph, [graph.add(SoftmaxOp(graph[0], 1))], [GraphDecomposePass(rows=True)])


@pytest.mark.parametrize("rows", [False, True])
def test_rows_of_one_kernel_stay_unless_they_are_asked_for(rows: bool) -> None:
    graph = Graph(random(4, 70))
    scale, bias = graph.constant(random(70)), graph.constant(random(70, seed=1))
    results = [graph.add(SoftmaxOp(graph[0], 1)), graph.add(LayerNormOp(graph[0], scale, bias, 1, 1e-5))]
    module = assert_same_values(graph, results, [GraphDecomposePass(rows=rows)])
    kept = {"softmax", "layer_norm"} & set(operators(module))
    assert kept == (set() if rows else {"softmax", "layer_norm"})


def test_longer_rows_than_one_block_should_do_are_decomposed() -> None:
    graph = Graph(np.zeros((2, MOST_COLUMNS + 1), np.float32))
    module = run_passes(graph.module(graph.add(SoftmaxOp(graph[0], 1))), [GraphDecomposePass()])
    assert "softmax" not in operators(module)
