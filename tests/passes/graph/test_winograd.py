"""Convolutions in tiles: the algorithm's matrices, values on the reference, and which convolutions are chosen."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, operators, random
from tests.helpers.winograd import InTiles, Layer, convolved
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import ConvOp
from treadle.dialects.graph.winograd import OUTPUTS, Matrix, filtering
from treadle.errors import TreadleError
from treadle.passes.graph.graph_block_channels import GraphBlockChannelsPass
from treadle.target.options import CONVOLUTIONS

LAYERS = {
    "even": Layer((1, 8, 8, 8), 8),
    "odd, of two images": Layer((2, 4, 7, 9), 8),
    "one pixel": Layer((1, 4, 1, 1), 4),
    "one row": Layer((2, 4, 1, 6), 4),
    "no border": Layer((1, 4, 6, 5), 4, (0, 0, 0, 0)),
    "uneven border": Layer((1, 4, 5, 4), 4, (0, 2, 1, 0)),
    "wide border": Layer((1, 4, 3, 3), 4, (3, 3, 4, 2)),
    "output channels in part": Layer((1, 4, 6, 6), 7),
    "a window's size": Layer((1, 4, 3, 3), 4, (0, 0, 0, 0)),
}


def conv(graph: Graph, x: SSAValue, layer: Layer) -> SSAValue:
    weights = graph.constant(layer.weights())
    return graph.add(ConvOp(x, weights, [1, 1], layer.pads, [1, 1], 1))


def product(matrix: Matrix, values: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, values, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_matrices_filter_exactly(outputs: int) -> None:
    algorithm = filtering(outputs)
    image = [Fraction(n * n - 3 * n, 7) for n in range(algorithm.tile)]
    filter = [Fraction(2), Fraction(-5, 3), Fraction(1, 7)]
    terms = zip(product(algorithm.filter, filter), product(algorithm.input, image), strict=True)
    wanted = [sum((filter[k] * image[n + k] for k in range(3)), Fraction(0)) for n in range(outputs)]
    assert product(algorithm.output, [a * b for a, b in terms]) == wanted


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_matrices_are_of_numbers_that_f32_holds(outputs: int) -> None:
    algorithm = filtering(outputs)
    values = [value for matrix in (algorithm.input, algorithm.output) for row in matrix for value in row]
    assert all(Fraction(float(np.float32(float(value)))) == value for value in values)


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("name", list(LAYERS))
def test_values_are_those_of_the_convolution(name: str, outputs: int) -> None:
    layer = LAYERS[name]
    graph = Graph(random(*layer.image))
    module = graph.module(conv(graph, graph[0], layer))
    InTiles(outputs=outputs).apply(Context(), module)
    module.verify()
    assert operators(module).count("winograd_conv") == 1
    (got,) = evaluate_module(module, graph.inputs)
    wanted = convolved(graph.inputs[0], layer.weights(), layer.pads)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=layer.tolerance * (2 if outputs == 4 else 1))


def test_the_definition_in_chunks_of_nested_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of 147 x 147 pixels: a chunk's second sum finds values of the first one, of axes that are gone."""
    monkeypatch.setattr("treadle.dialects.graph.evaluate._CHUNK", 4000)
    test_values_are_those_of_the_convolution("even", 2)


def test_partial_blocks_of_input_channels() -> None:
    """Six channels lie in two blocks of four, of which the last two lanes hold reciprocals of zero."""
    first, second = Layer((1, 4, 5, 5), 6), Layer((1, 6, 5, 5), 8)
    graph = Graph(np.abs(random(*first.image)) + np.float32(1))
    positive = graph.constant(np.abs(first.weights()) + np.float32(0.1))
    x = graph.add(ConvOp(graph[0], positive, [1, 1], first.pads, [1, 1], 1))
    module = graph.module(conv(graph, x, second))
    (wanted,) = evaluate_module(module, graph.inputs)
    InTiles().apply(Context(), module)
    module.verify()
    (got,) = evaluate_module(module, graph.inputs)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=second.tolerance * float(np.abs(wanted).max()))


def rewritten(layer: Layer, convolution: str, strides: int = 1, dilations: int = 1) -> list[str]:
    graph = Graph(np.zeros(layer.image, np.float32))
    weights = graph.constant(layer.weights())
    y = graph.add(ConvOp(graph[0], weights, [strides] * 2, layer.pads, [dilations] * 2, 1))
    return operators(apply(graph.module(y), convolution))


def apply(module: ModuleOp, convolution: str) -> ModuleOp:
    GraphBlockChannelsPass("avx2", convolution).apply(Context(), module)
    return module


LARGE = Layer((1, 64, 56, 56), 64)


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_large_layers_are_in_tiles_where_that_is_allowed(convolution: str) -> None:
    graph = Graph(np.zeros(LARGE.image, np.float32))
    module = apply(graph.module(conv(graph, graph[0], LARGE)), convolution)
    products = [op.properties["outputs"] for op in module.walk() if op.name == "graph.winograd_conv"]
    wanted = {"direct": [], "winograd2": ["2 : i64"], "winograd4": ["4 : i64"]}
    assert list(map(str, products)) == wanted[convolution]


@pytest.mark.parametrize("layer", [Layer((1, 8, 28, 28), 8), Layer((1, 512, 2, 2), 512)])
def test_little_work_stays_direct(layer: Layer) -> None:
    """Few channels, for which transforms cost more than they save, and few pixels, for which filters do."""
    assert "winograd_conv" not in rewritten(layer, "winograd2")


def test_strides_and_dilations_stay_direct() -> None:
    assert "winograd_conv" not in rewritten(LARGE, "winograd4", strides=2)
    assert "winograd_conv" not in rewritten(LARGE, "winograd4", dilations=2)


def test_filters_that_are_computed_stay_direct() -> None:
    graph = Graph(np.zeros(LARGE.image, np.float32), LARGE.weights())
    module = graph.module(graph.add(ConvOp(graph[0], graph[1], [1, 1], LARGE.pads, [1, 1], 1)))
    assert "winograd_conv" not in operators(apply(module, "winograd4"))


def test_filters_that_are_not_finite_stay_direct() -> None:
    """Their transforms would be NaN where the convolution is infinite."""
    weights = LARGE.weights()
    weights[3, 5, 1, 1] = np.inf
    graph = Graph(np.zeros(LARGE.image, np.float32))
    y = graph.add(ConvOp(graph[0], graph.constant(weights), [1, 1], LARGE.pads, [1, 1], 1))
    assert "winograd_conv" not in operators(apply(graph.module(y), "winograd4"))


def test_unknown_ways_are_rejected() -> None:
    with pytest.raises(TreadleError, match=r"unknown convolution 'fft'.*direct.*winograd2.*winograd4"):
        rewritten(LARGE, "fft")
