"""graph-merge-rows keeps values, merges what runs over one row, and leaves the rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, operators, random, run_passes
from treadle.dialects.graph import (
    BinaryOp,
    BroadcastOp,
    ComputeOp,
    ConcatOp,
    MatmulOp,
    ReductionOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.passes.graph.graph_decompose import GraphDecomposePass
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.passes.graph.graph_merge_rows import GraphMergeRowsPass
from treadle.schedules.row_analysis import Rows, analyse_rows

Build = Callable[[Graph], SSAValue]
PASSES = [GraphDecomposePass(rows=True), GraphDefinePass(), GraphMergeRowsPass()]


def fold(g: Graph, kind: str, x: SSAValue, *dims: int) -> SSAValue:
    return g.add(ReductionOp(kind, x, dims, keep=True))


def two(g: Graph, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
    return g.add(BinaryOp(kind, a, b))


def standardised(g: Graph, x: SSAValue, *dims: int) -> SSAValue:
    """As exporters write it."""
    centred = two(g, "sub", x, fold(g, "mean", x, *dims))
    square = fold(g, "mean", two(g, "mul", centred, centred), *dims)
    spread = g.add(UnaryOp("sqrt", two(g, "add", square, g.constant(np.float32(1e-5)))))
    return two(g, "div", centred, spread)


def layer_norm(g: Graph) -> SSAValue:
    scaled = two(g, "mul", standardised(g, g[0], 2), g.constant(random(8)))
    return two(g, "add", scaled, g.constant(random(8, seed=1)))


def lp_norm(g: Graph) -> SSAValue:
    size = g.add(UnaryOp("sqrt", fold(g, "add", two(g, "mul", g[0], g[0]), 1)))
    zero = two(g, "eq", size, g.constant(np.float32(0)))
    return two(g, "div", g[0], g.add(WhereOp(zero, g.constant(np.float32(1)), size)))


def masked_softmax(g: Graph) -> SSAValue:
    """A division by zero, of rows that a mask empties, is undone after the softmax."""
    probabilities = g.add(SoftmaxOp(g[0], 2))
    return two(g, "mul", probabilities, g.constant(random(8)))


def normalised_softmax(g: Graph) -> SSAValue:
    return g.add(SoftmaxOp(standardised(g, g[0], 2), 2))


MERGED: dict[str, Build] = {
    "softmax": lambda g: g.add(SoftmaxOp(g[0], 1)),
    "softmax and its use": masked_softmax,
    "softmax of a normalised row": normalised_softmax,
    "layer norm": layer_norm,
    "instance norm": lambda g: standardised(g, g[0], 1, 2),
    "norm over the first dimensions": lambda g: standardised(g, g[0], 0, 1),
    "norm over all dimensions": lambda g: standardised(g, g[0], 0, 1, 2),
    "lp norm": lp_norm,
    "deviation": lambda g: two(g, "sub", g[0], fold(g, "mean", g[0], 2)),
}


@pytest.mark.parametrize("name", list(MERGED))
def test_one_definition_is_left(name: str) -> None:
    graph = Graph(random(4, 6, 8))
    module = assert_same_values(graph, [MERGED[name](graph)], PASSES, tolerance=1e-5)
    computes = [op for op in module.walk() if isinstance(op, ComputeOp)]
    assert len(computes) == 1
    rows = analyse_rows(computes[0])
    assert isinstance(rows, Rows)
    assert len(rows.phases) == len(rows.reduces) + 1, "no reduction is there twice"


def test_variance_of_which_the_root_is_taken() -> None:
    """Two reductions become one definition, whose result is one element a row; the root stays an epilogue."""
    graph = Graph(random(4, 6, 8))
    centred = two(graph, "sub", graph[0], fold(graph, "mean", graph[0], 2))
    deviation = graph.add(UnaryOp("sqrt", fold(graph, "mean", two(graph, "mul", centred, centred), 2)))
    module = assert_same_values(graph, [deviation], PASSES, tolerance=1e-5)
    reduces = [sum(op.name == "graph.reduce" for op in c.walk()) for c in module.walk() if isinstance(c, ComputeOp)]
    assert sorted(reduces) == [0, 0, 2]


def shared_mean(g: Graph) -> SSAValue:
    """The mean is read by a row, and by what is no row."""
    mean = fold(g, "mean", g[0], 2)
    return g.add(ConcatOp([two(g, "sub", g[0], mean), mean], 2))


def other_rows(g: Graph) -> SSAValue:
    """Sums of columns, used along rows."""
    return two(g, "div", g[0], fold(g, "add", fold(g, "max", g[0], 0), 2))


def repeated(g: Graph) -> SSAValue:
    """Each row would be computed four times."""
    row = two(g, "sub", g[1], fold(g, "max", g[1], 1))
    return two(g, "add", g[0], row)


def flattened(g: Graph) -> SSAValue:
    """The reshape separates the columns from the reduction's index."""
    flat = g.add(ReshapeOp(g[0], [4, 48]))
    return two(g, "sub", g[0], g.add(ReshapeOp(fold(g, "max", flat, 1), [4, 1, 1])))


@pytest.mark.parametrize(
    ("build", "reductions"),
    [(shared_mean, 1), (other_rows, 2), (repeated, 1), (flattened, 1)],
    ids=["shared", "other", "repeated", "flattened"],
)
def test_what_does_not_run_over_one_row_stays(build: Build, reductions: int) -> None:
    graph = Graph(random(4, 6, 8), random(6, 8, seed=1))
    module = assert_same_values(graph, [build(graph)], PASSES, tolerance=1e-5)
    assert len([op for op in module.walk() if op.name == "graph.reduce"]) == reductions
    *_, result = [op for op in module.walk() if isinstance(op, ComputeOp)]
    assert "graph.reduce" not in str(result)


def test_what_a_product_may_take_as_epilogue_is_left_to_it() -> None:
    graph = Graph(random(6, 5), random(5, 8, seed=1))
    scores = two(graph, "mul", graph.add(MatmulOp(graph[0], graph[1])), graph.constant(np.float32(0.125)))
    module = run_passes(graph.module(graph.add(SoftmaxOp(scores, 1))), PASSES)
    assert operators(module) == ["matmul", "compute", "compute"]


def test_a_long_chain_is_searched_once() -> None:
    """A hundred elementwise definitions after a reduction that none of them can take."""
    graph = Graph(random(4, 8))
    value = graph.add(TransposeOp(graph.add(BroadcastOp(fold(graph, "max", graph[0], 0), [4, 8])), [1, 0]))
    for _ in range(100):
        value = graph.add(UnaryOp("tanh", value))
    module = assert_same_values(graph, [value], PASSES)
    assert len([op for op in module.walk() if op.name == "graph.reduce"]) == 1
