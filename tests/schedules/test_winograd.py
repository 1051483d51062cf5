"""Kernels of convolutions in tiles, compiled, against float64."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from tests.helpers.graphs import Graph, name_arguments, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from tests.helpers.winograd import Layer, after_graph, convolved
from treadle.dialects.graph import BinaryOp, ConvOp, FusedOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.anchor import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

LAYERS = {
    "odd, of two images": Layer((2, 16, 7, 9), 32),
    "one pixel": Layer((1, 16, 1, 1), 16),
    "one column": Layer((2, 16, 5, 1), 16),
    "no border": Layer((1, 16, 6, 5), 16, (0, 0, 0, 0)),
    "uneven border": Layer((1, 16, 5, 4), 24, (0, 2, 1, 3)),
    "several panels and chunks": Layer((1, 48, 17, 19), 80),
}
WAYS = (("sse2", 2), ("sse2", 4), ("cpu", 2))
"""Vectors of four and of sixteen elements, and the outputs of a tile."""
CHAIN = "a chain"
FIRST, SECOND = Layer((2, 16, 9, 7), 24), Layer((2, 24, 9, 7), 40)
"""Channels that fill blocks of sixteen in part."""


@cache
def programs(target: str, outputs: int) -> dict[str, CompiledProgram]:
    printed = [print_layer(name, target, outputs) for name in LAYERS]
    return compile_programs([*printed, print_chain(target, outputs)], target)


def print_layer(name: str, target: str, outputs: int) -> PrintedProgram:
    graph = Graph(image(LAYERS[name]))
    return printed(name, graph, conv(graph, graph[0], LAYERS[name]), target, outputs)


def print_chain(target: str, outputs: int) -> PrintedProgram:
    """The epilogues of a residual network: a bias, another image, and `relu`."""
    graph = Graph(image(FIRST), random(2, 40, 9, 7), random(40, 1, 1))
    x = graph.add(UnaryOp("relu", conv(graph, graph[0], FIRST)))
    y = graph.add(BinaryOp("add", conv(graph, x, SECOND), graph[2]))
    return printed(CHAIN, graph, graph.add(UnaryOp("relu", graph.add(BinaryOp("add", y, graph[1])))), target, outputs)


def printed(name: str, graph: Graph, result: SSAValue, target: str, outputs: int) -> PrintedProgram:
    module = graph.module(result)
    name_arguments(module, len(graph.inputs), 1)
    return print_program(name, after_graph(module, outputs, target), target, after="graph")


def conv(graph: Graph, x: SSAValue, layer: Layer) -> SSAValue:
    weights = graph.constant(layer.weights())
    return graph.add(ConvOp(x, weights, [1, 1], layer.pads, [1, 1], 1))


def image(layer: Layer) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(layer.image).astype(np.float32)


def of(outputs: int, *layers: Layer) -> float:
    """The tolerance of layers one after another: F(4x4) has about twice the errors of F(2x2)."""
    return sum(layer.tolerance for layer in layers) * (2 if outputs == 4 else 1)


@pytest.mark.parametrize(("name", "way"), list(product(LAYERS, WAYS)))
def test_layers(name: str, way: tuple[str, int]) -> None:
    layer, x = LAYERS[name], image(LAYERS[name])
    (got,) = programs(*way)[name].run([x])
    np.testing.assert_allclose(got, convolved(x, layer.weights(), layer.pads), rtol=0, atol=of(way[1], layer))


@pytest.mark.parametrize("way", WAYS)
def test_epilogues(way: tuple[str, int]) -> None:
    program = programs(*way)[CHAIN]
    x, residual, bias = image(FIRST), random(2, 40, 9, 7), random(40, 1, 1)
    (got,) = program.run([x, residual, bias])
    between = np.maximum(convolved(x, FIRST.weights(), FIRST.pads), 0)
    wanted = np.maximum(convolved(between, SECOND.weights(), SECOND.pads) + bias + residual, 0)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=of(way[1], FIRST, SECOND))


def test_one_kernel_each_for_the_transforms_and_the_product() -> None:
    """Neither a stored border nor a copy is left; bias, residual and relu are epilogues."""
    kernels = [unit.name for unit in print_chain("sse2", 2).kernels]
    assert [name.removesuffix("_2") for name in kernels] == [
        "winograd_input", "unpack_matmul", "winograd_output_relu",
        "winograd_input", "unpack_matmul", "winograd_output_add_relu",
    ]  # fmt: skip


SCHEDULED = """
func.func @main(%x: tensor<2x3x7x6x4xf32>) -> tensor<16x3x24x4xf32> {{
  %y = graph.fused "tiles" {{
    %v = graph.winograd_input %x {{outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>}}
        : (tensor<2x3x7x6x4xf32>) -> tensor<16x3x24x4xf32>
    graph.yield %v : tensor<16x3x24x4xf32>
  }} {schedule} : tensor<16x3x24x4xf32>
  func.return %y : tensor<16x3x24x4xf32>
}}
"""


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_rows_of_a_block(rows: int) -> None:
    """24 rows of tiles: any number to a block, which is rounded down to them all."""
    text = SCHEDULED.format(schedule=f'schedule #schedule.use<"winograd_cpu", {{rows = {rows}}}>')
    module = Parser(treadle_context(), text).parse_module()
    name_arguments(module, 1, 1)
    x = random(2, 3, 7, 6, 4)
    program = compile_programs([print_program("rows", module, "sse2", after="schedule")], "sse2")["rows"]
    (got,) = program.run([x])
    padded = np.pad(x, [(0, 0), (0, 0), (1, 3), (1, 2), (0, 0)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (4, 4), axis=(2, 3))[:, :, ::2, ::2][:, :, :4, :3]
    matrix = np.array([[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]])
    wanted = np.einsum("pi,qj,nbhwlij->pqbnhwl", matrix, matrix, windows).reshape(16, 3, 24, 4)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_blocks_have_no_more_rows_than_there_are() -> None:
    module = Parser(treadle_context(), SCHEDULED.format(schedule="")).parse_module()
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    template, anchor = TEMPLATES["winograd_cpu"], anchor_of(fused)
    assert template.canonical(anchor, {"rows": 4096}, Target.parse("sse2")) == {"rows": 32}
    assert str(default_schedule(fused, Target.parse("sse2")).template.data) == "winograd_cpu"
