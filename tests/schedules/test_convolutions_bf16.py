"""Convolutions of bfloat16 on a CPU core's matrix unit, compiled, against float64 of the rounded operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, name_arguments, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.dialects.graph import BinaryOp, ConvOp, PoolOp, UnaryOp
from treadle.target.options import CompileOptions

Array = NDArray[Any]
TARGETS = ("sse2{matrix_unit=amx}", "cpu{matrix_unit=amx}", "cpu{matrix_unit=vnni_bf16}")


@dataclass(frozen=True)
class Layer:
    """A convolution, before a bias and `relu`."""

    image: tuple[int, ...]
    channels: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    groups: int = 1

    def weights(self) -> Array:
        return random(self.channels, self.image[1] // self.groups, self.kernel, self.kernel, seed=7)


LAYERS = {
    "pointwise": Layer((1, 32, 7, 9), 48),
    "of two images": Layer((2, 16, 5, 6), 32, 3, 1, 1),
    "of few channels": Layer((1, 3, 17, 13), 24, 5, 2, 2),
    "of one channel": Layer((2, 1, 9, 40), 32, 3, 1, 1),
    "of few channels by windows that reach far": Layer((1, 3, 8, 30), 32, 7, 2, 0),
    "of few channels by windows that leave a block": Layer((1, 3, 12, 12), 32, 9, 1, 1),
    "with strides": Layer((1, 32, 9, 9), 16, 3, 2, 1),
    "channels that fill no block": Layer((1, 24, 6, 5), 40, 3, 1, 1),
    "depthwise": Layer((1, 32, 8, 7), 32, 3, 1, 1, 32),
    "groups of blocks": Layer((1, 32, 6, 6), 64, 3, 1, 1, 2),
}
NARROW = CompileOptions(precision="bf16")


@cache
def print_layer(name: str, target: str) -> PrintedProgram:
    layer = LAYERS[name]
    graph = Graph(random(*layer.image), random(layer.channels, 1, 1))
    return printed(name, graph, relu(graph, conv(graph, graph[0], layer), graph[1]), target)


def print_chain(target: str) -> PrintedProgram:
    """A block with a residual, and pooling: what stands between images of bfloat16."""
    layer = Layer((1, 32, 10, 10), 32, 3, 1, 1)
    graph = Graph(random(*layer.image), random(32, 1, 1))
    x = relu(graph, conv(graph, graph[0], layer), graph[1])
    pooled = graph.add(PoolOp("max", x, [3, 3], [2, 2], [1, 1, 1, 1], [1, 1]))
    y = conv(graph, pooled, Layer((1, 32, 5, 5), 32))
    return printed("chain", graph, graph.add(UnaryOp("relu", graph.add(BinaryOp("add", y, pooled)))), target)


def conv(graph: Graph, x: SSAValue, layer: Layer) -> SSAValue:
    strides, pads = [layer.stride] * 2, [layer.pad] * 4
    return graph.add(ConvOp(x, graph.constant(layer.weights()), strides, pads, [1, 1], layer.groups))


def relu(graph: Graph, x: SSAValue, bias: SSAValue) -> SSAValue:
    return graph.add(UnaryOp("relu", graph.add(BinaryOp("add", x, bias))))


def printed(name: str, graph: Graph, result: SSAValue, target: str) -> PrintedProgram:
    module = graph.module(result)
    name_arguments(module, len(graph.inputs), 1)
    return print_program(name, module, target, after="import", options=NARROW)


@cache
def programs(target: str) -> dict[str, CompiledProgram]:
    return compile_programs([*(print_layer(name, target) for name in LAYERS), print_chain(target)], target)


def rounded(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def convolved(x: Array, layer: Layer, w: Array) -> Array:
    """By windows, in float64."""
    side, step = [(0, 0), (0, 0), (layer.pad,) * 2, (layer.pad,) * 2], layer.stride
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, side), (layer.kernel,) * 2, axis=(2, 3))
    windows = windows[:, :, ::step, ::step]
    images, weights = (np.split(each, layer.groups, axis=axis) for each, axis in ((windows, 1), (w, 0)))
    parts = [np.einsum("nchwij,ocij->nohw", *pair) for pair in zip(images, weights, strict=True)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, target: str) -> None:
    """Operands are rounded once, but those of depthwise convolutions, whose images are not; sums are not rounded."""
    layer, x, bias = LAYERS[name], random(*LAYERS[name].image), random(LAYERS[name].channels, 1, 1)
    (got,) = programs(target)[name].run([x, bias])
    image = x.astype(np.float64) if layer.groups > 1 else rounded(x)
    w = rounded(layer.weights())
    wanted = np.maximum(convolved(image, layer, w) + bias, 0)
    terms = w[0].size + 2
    limit = terms * 2.0**-23 * (convolved(abs(image), layer, abs(w)) + abs(bias))
    assert (abs(got - wanted) <= limit).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_residual_and_pooling(target: str) -> None:
    layer, x, bias = Layer((1, 32, 10, 10), 32, 3, 1, 1), random(1, 32, 10, 10), random(32, 1, 1)
    (got,) = programs(target)["chain"].run([x, bias])
    first = np.maximum(convolved(rounded(x), layer, rounded(layer.weights())) + bias, 0)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(first, [(0, 0)] * 2 + [(1, 1)] * 2), (3, 3), axis=(2, 3))
    pooled = windows[:, :, ::2, ::2].max(axis=(-2, -1))
    w = rounded(Layer((1, 32, 5, 5), 32).weights())
    wanted = np.maximum(convolved(rounded(pooled), Layer((1, 32, 5, 5), 32), w) + pooled, 0)
    # What is between may be rounded to either neighbour, of which each is half a unit in the last place away.
    limit = 2.0**-7 * (convolved(abs(pooled), Layer((1, 32, 5, 5), 32), abs(w)) + abs(pooled)) + 1e-5
    assert (abs(got - wanted) <= limit).all()


def test_dense_convolutions_are_products_of_tiles() -> None:
    for name, layer in LAYERS.items():
        kernels = print_layer(name, TARGETS[0]).kernels
        assert any("treadle_tiles_bf16" in unit.text for unit in kernels) == (layer.groups == 1), name
