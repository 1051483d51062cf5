"""The bound on what is merged: no definition and no kernel exceeds it, values stay, and `--explain-fusion` names it."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, random
from treadle.dialects.graph import BinaryOp, ComputeOp, FusedOp, ReshapeOp, SoftmaxOp, UnaryOp
from treadle.passes.graph import definition_analysis
from treadle.passes.graph.definition_analysis import size
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_fuse import GraphFusePass
from treadle.passes.graph.graph_inline import GraphInlinePass
from treadle.passes.graph.graph_merge_rows import GraphMergeRowsPass

MOST = 90
DEFINE = (GraphDefinePass(), GraphMergeRowsPass(), GraphInlinePass())


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_analysis, "MOST_WORK", MOST)


def chain(length: int) -> tuple[Graph, SSAValue]:
    """Diamonds: each result is read by the next operator and by the one after it."""
    graph = Graph(random(4, 8))
    last = graph[0]
    for _ in range(length):
        last = graph.add(BinaryOp("add", last, graph.add(UnaryOp("sigmoid", last))))
    return graph, last


def sizes(module: ModuleOp) -> list[int]:
    return [size(op) for op in module.walk() if isinstance(op, ComputeOp)]


def test_inlining_stops_at_the_bound() -> None:
    graph, last = chain(12)
    module = assert_same_values(graph, [last], DEFINE)
    found = sizes(module)
    assert max(found) <= MOST and len(found) < 12


def test_a_plain_move_is_inlined_into_a_full_definition() -> None:
    graph = Graph(random(4, 8))
    last = graph.add(ReshapeOp(graph[0], (8, 4)))
    for _ in range(6):
        last = graph.add(UnaryOp("tanh", last))
    module = assert_same_values(graph, [last], DEFINE)
    assert len(sizes(module)) == 2  # a tanh counts 25 operations


def test_rows_stop_at_the_bound() -> None:
    graph = Graph(random(4, 8))
    last = graph[0]
    for _ in range(6):
        last = graph.add(SoftmaxOp(graph.add(UnaryOp("tanh", last)), 1))
    module = assert_same_values(graph, [last], DEFINE)
    assert max(sizes(module)) <= MOST and len(sizes(module)) < 12


def test_kernels_stop_at_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    graph, last = chain(12)
    module = assert_same_values(graph, [last], (*DEFINE, GraphFusePass(explain=True)))
    fused = [op for op in module.walk() if isinstance(op, FusedOp)]
    groups = [sum(size(op) for op in group.walk() if isinstance(op, ComputeOp)) for group in fused]
    assert len(groups) > 3 and max(groups) <= MOST
    assert "not fused, the kernel would be too large, with " in capsys.readouterr().err


def test_results_of_one_tensor_stop_at_the_bound() -> None:
    graph = Graph(random(4, 8))
    results = [graph.add(BinaryOp("mul", graph[0], graph.constant(np.float32(n + 2)))) for n in range(40)]
    module = assert_same_values(graph, results, (*DEFINE, GraphFusePass()))
    kernels = [len(fused.outputs) for fused in module.walk() if isinstance(fused, FusedOp)]
    assert sum(kernels) == 40 and max(kernels) == MOST // 3  # a read, a product, a store
