"""graph-conv-to-matmul keeps values for every form of convolution."""

import pytest

from tests.helpers.graphs import Graph, assert_same_values, operators, random
from treadle.dialects.graph import ConvOp, ConvTransposeOp
from treadle.passes.graph.graph_conv_to_matmul import GraphConvToMatmulPass
from treadle.passes.graph.graph_fold_constants import GraphFoldConstantsPass
from treadle.passes.graph.graph_pack_weights import GraphPackWeightsPass
from treadle.passes.graph.graph_simplify import GraphSimplifyPass

PASSES = [GraphConvToMatmulPass(), GraphFoldConstantsPass(), GraphSimplifyPass(), GraphPackWeightsPass()]

CASES = [
    ("window", (6, 4, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], 1),
    ("strided", (6, 4, 3, 2), [2, 1], [1, 0, 1, 2], [1, 2], 1),
    ("pointwise", (6, 4, 1, 1), [1, 1], [0, 0, 0, 0], [1, 1], 1),
    ("pointwise, strided", (6, 4, 1, 1), [2, 2], [0, 0, 0, 0], [1, 1], 1),
    ("grouped", (6, 2, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], 2),
]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("size", [6, 15])
@pytest.mark.parametrize(
    ("shape", "strides", "pads", "dilations", "groups"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_convolutions(
    shape: tuple[int, ...],
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    groups: int,
    size: int,
    batch: int,
) -> None:
    graph = Graph(random(batch, 4, size, size + 1))
    y = graph.add(ConvOp(graph[0], graph.constant(random(*shape)), strides, pads, dilations, groups))
    left = operators(assert_same_values(graph, [y], PASSES))
    assert ("conv" in left) == (groups > 1)
    assert ("matmul" in left) == (groups == 1)


def test_one_spatial_dimension() -> None:
    graph = Graph(random(1, 4, 20))
    y = graph.add(ConvOp(graph[0], graph.constant(random(6, 4, 5)), [2], [2, 2], [1], 1))
    assert "matmul" in operators(assert_same_values(graph, [y], PASSES))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("pads", "becomes"), [(0, "matmul"), (1, "conv_transpose")])
def test_transposed_convolutions(batch: int, pads: int, becomes: str) -> None:
    graph = Graph(random(batch, 4, 5, 6))
    weights = graph.constant(random(4, 3, 2, 3))
    y = graph.add(ConvTransposeOp(graph[0], weights, [2, 3], [pads] * 4, [1, 1], 1, [0, 0]))
    assert becomes in operators(assert_same_values(graph, [y], PASSES))
