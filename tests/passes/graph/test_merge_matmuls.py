"""graph-merge-matmuls keeps values, joins what is alike, and stays away where a kernel would be added."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, operators, random
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    GatherOp,
    MatmulOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
)
from treadle.passes.graph.graph_deduplicate import GraphDeduplicatePass
from treadle.passes.graph.graph_merge_matmuls import GraphMergeMatmulsPass
from treadle.passes.graph.rewriting import shape_of

PASSES = [GraphDeduplicatePass(), GraphMergeMatmulsPass()]


def products(graph: Graph, widths: Sequence[int]) -> list[SSAValue]:
    k = shape_of(graph[0])[-1]
    return [graph.add(MatmulOp(graph[0], graph.constant(random(k, n, seed=i)))) for i, n in enumerate(widths)]


def biased(graph: Graph, x: SSAValue, seed: int = 0) -> SSAValue:
    return graph.add(BinaryOp("add", graph.constant(random(shape_of(x)[-1], seed=seed)), x))


def consumed(graph: Graph, x: SSAValue) -> SSAValue:
    return graph.add(ReductionOp("max", x, [0], False))


def merged(graph: Graph, results: Sequence[SSAValue]) -> list[str]:
    return operators(assert_same_values(graph, results, PASSES))


def test_biases_are_joined_and_a_missing_one_is_zero() -> None:
    graph = Graph(random(5, 8))
    a, b, c = products(graph, [3, 4, 6])
    names = merged(graph, [consumed(graph, x) for x in (biased(graph, a), b, biased(graph, c, 1))])
    assert names.count("matmul") == 1 and names.count("binary") == 1 and names.count("slice") == 3


def test_queries_keys_and_values_are_one_product() -> None:
    """Each over its own reshape of the input, as exporters write it."""
    graph = Graph(random(1, 5, 8))
    heads: list[SSAValue] = []
    for n in range(3):
        flat = graph.add(ReshapeOp(graph[0], [5, 8]))
        linear = graph.add(MatmulOp(flat, graph.constant(random(8, 8, seed=n))))
        x = biased(graph, graph.add(ReshapeOp(linear, [1, 5, 8])), n)
        heads.append(graph.add(TransposeOp(graph.add(ReshapeOp(x, [1, 5, 2, 4])), [0, 2, 1, 3])))
    heads[0] = graph.add(BinaryOp("mul", heads[0], graph.constant(np.float32(1))))
    scaled = graph.add(AttentionOp(*heads))
    names = merged(graph, [scaled])
    assert names.count("matmul") == 3, "the queries' scale would have been an epilogue"


def test_without_a_scale_queries_join_keys_and_values() -> None:
    graph = Graph(random(1, 5, 8))
    heads: list[SSAValue] = []
    for n in range(3):
        flat = graph.add(ReshapeOp(graph[0], [5, 8]))
        linear = graph.add(MatmulOp(flat, graph.constant(random(8, 8, seed=n))))
        x = biased(graph, graph.add(ReshapeOp(linear, [1, 5, 8])), n)
        heads.append(graph.add(TransposeOp(graph.add(ReshapeOp(x, [1, 5, 2, 4])), [0, 2, 1, 3])))
    names = merged(graph, [graph.add(AttentionOp(*heads))])
    assert (names.count("matmul"), names.count("binary"), names.count("slice")) == (1, 1, 3)


def test_a_scale_of_one_branch_is_joined() -> None:
    graph = Graph(random(5, 8))
    a, b = (biased(graph, x) for x in products(graph, [3, 4]))
    a = graph.add(BinaryOp("mul", a, graph.constant(np.float32(0.5))))
    names = merged(graph, [consumed(graph, a), consumed(graph, b)])
    assert (names.count("matmul"), names.count("binary")) == (1, 2)


def test_images_of_pointwise_convolutions() -> None:
    """A shared right operand; biases and a function of whole channels."""
    graph = Graph(random(6, 20))
    results: list[SSAValue] = []
    for n, channels in enumerate([3, 5]):
        product = graph.add(MatmulOp(graph.constant(random(channels, 6, seed=n)), graph[0]))
        image = graph.add(ReshapeOp(product, [1, channels, 4, 5]))
        y = graph.add(BinaryOp("add", image, graph.constant(random(channels, 1, 1))))
        results.append(graph.add(ReductionOp("max", graph.add(UnaryOp("relu", y)), [2, 3], True)))
    names = merged(graph, results)
    assert (names.count("matmul"), names.count("binary"), names.count("unary")) == (1, 1, 1)


def test_transposed_products_of_a_batch() -> None:
    graph = Graph(random(3, 5, 8))
    turned = [graph.add(TransposeOp(x, [2, 0, 1])) for x in products(graph, [3, 4])]
    names = merged(graph, [consumed(graph, x) for x in turned])
    assert (names.count("matmul"), names.count("transpose")) == (1, 1)


def _returned(graph: Graph) -> list[SSAValue]:
    a, b = products(graph, [3, 4])
    return [a, consumed(graph, b)]


def _returned_reshaped(graph: Graph) -> list[SSAValue]:
    a, b = products(graph, [3, 4])
    return [graph.add(ReshapeOp(a, [15])), consumed(graph, b)]


def _own_function(graph: Graph) -> list[SSAValue]:
    """A gate: the function of one branch and the product with the other are epilogues."""
    a, b = products(graph, [4, 4])
    return [consumed(graph, graph.add(BinaryOp("mul", graph.add(UnaryOp("sigmoid", a)), b)))]


def _computed_weights(graph: Graph) -> list[SSAValue]:
    weights = [graph.add(SliceOp(graph[1], [0, n], [8, 3], [1, 1])) for n in (0, 3)]
    return [consumed(graph, graph.add(MatmulOp(graph[0], w))) for w in weights]


def _bias_per_row(graph: Graph) -> list[SSAValue]:
    column = graph.constant(random(5, 1))
    return [consumed(graph, graph.add(BinaryOp("add", x, column))) for x in products(graph, [3, 4])]


def _different_rows(graph: Graph) -> list[SSAValue]:
    halves = [graph.add(SliceOp(graph[0], [n, 0], [2, 8], [1, 1])) for n in (0, 2)]
    return [consumed(graph, graph.add(MatmulOp(x, graph.constant(random(8, 3, seed=n))))) for n, x in enumerate(halves)]


@pytest.mark.parametrize(
    "write", [_returned, _returned_reshaped, _own_function, _computed_weights, _bias_per_row, _different_rows]
)
def test_products_that_stay_apart(write: Callable[[Graph], list[SSAValue]]) -> None:
    graph = Graph(random(5, 8), random(8, 6))
    assert merged(graph, write(graph)).count("matmul") == 2


def test_equal_constants_and_moves_are_one_but_arithmetic_is_not() -> None:
    graph = Graph(random(5, 8))
    rows = [graph.add(GatherOp(graph[0], graph.constant(np.array([1, 0, 3])), 0)) for _ in range(2)]
    y = graph.add(BinaryOp("add", *(graph.add(UnaryOp("exp", x)) for x in rows)))
    names = operators(assert_same_values(graph, [y], [GraphDeduplicatePass()], tolerance=0))
    assert names == ["constant", "gather", "unary", "unary", "binary"]
