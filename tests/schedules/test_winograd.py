"""Kernels of convolutions in tiles, compiled, against float64."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from tests.helpers.graphs import Graph, name_arguments, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from tests.helpers.winograd import Layer, after_graph, convolved
from treadle.dialects.graph import BinaryOp, ConvOp, FusedOp, UnaryOp, WinogradConvOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.winograd_cpu import Extents, estimated_cycles
from treadle.target import Target

LAYERS = {
    "odd, of two images": Layer((2, 16, 7, 9), 32),
    "one pixel": Layer((1, 16, 1, 1), 16),
    "one column": Layer((2, 16, 5, 1), 16),
    "no border": Layer((1, 16, 6, 5), 16, (0, 0, 0, 0)),
    "uneven border": Layer((1, 16, 5, 4), 24, (0, 2, 1, 3)),
    "several panels and chunks": Layer((1, 48, 17, 19), 80),
    "a panel that overhangs": Layer((1, 16, 5, 5), 20),
    "a wide panel that overhangs": Layer((1, 16, 5, 5), 112),
}
WAYS = (("sse2", 2), ("sse2", 4), ("cpu", 2))
"""Vectors of four and of sixteen elements, and the outputs of a tile."""
WIDE = ("odd, of two images", "several panels and chunks", "a wide panel that overhangs")
LAYERS_OF = {way: WIDE if way[0] == "cpu" else tuple(LAYERS) for way in WAYS}
"""Borders are the same for vectors of either length, not for tiles of either size."""
CHAIN = "a chain"
FIRST, SECOND = Layer((2, 16, 9, 7), 24), Layer((2, 24, 9, 7), 40)
"""Channels that fill blocks of sixteen in part."""


@cache
def programs(target: str, outputs: int) -> dict[str, CompiledProgram]:
    printed = [print_layer(name, target, outputs) for name in LAYERS_OF[target, outputs]]
    return compile_programs([*printed, print_chain(target, outputs)], target)


@cache
def print_layer(name: str, target: str, outputs: int) -> PrintedProgram:
    graph = Graph(image(LAYERS[name]))
    return printed(name, graph, conv(graph, graph[0], LAYERS[name]), target, outputs)


@cache
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


@pytest.mark.parametrize(("name", "way"), [(name, way) for way in WAYS for name in LAYERS_OF[way]])
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


@pytest.mark.parametrize(
    ("name", "target"), [("a panel that overhangs", "sse2"), ("a wide panel that overhangs", "avx512")]
)
def test_a_panel_that_overhangs_is_multiplied_in_vectors(name: str, target: str) -> None:
    """Columns that do not exist are the last vector again. The last column again would make every product scalar."""
    (kernel,) = (unit.text for unit in print_layer(name, target, 2).kernels if "winograd" in unit.name)
    assert re.search(r"^ +v\d+f acc\[\d+\]\[\d\];$", kernel, re.MULTILINE)
    assert "float acc" not in kernel


def test_one_kernel() -> None:
    """Neither a stored border nor transformed tiles are left; bias, residual and relu are epilogues."""
    kernels = [unit.name for unit in print_chain("sse2", 2).kernels]
    assert kernels == ["unpack_winograd_conv_relu", "unpack_winograd_conv_add_relu"]


SCHEDULED = """
func.func @main(%x: tensor<2x3x7x6x4xf32>, %u: tensor<16x10x20xf32>) -> tensor<2x5x7x6x4xf32> {{
  %y = graph.fused "tiles" {{
    %v = graph.winograd_conv %x, %u {{outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>}}
        : (tensor<2x3x7x6x4xf32>, tensor<16x10x20xf32>) -> tensor<2x5x7x6x4xf32>
    graph.yield %v : tensor<2x5x7x6x4xf32>
  }} {schedule} : tensor<2x5x7x6x4xf32>
  func.return %y : tensor<2x5x7x6x4xf32>
}}
"""
"""24 tiles, and three panels of two vectors, of which the last one has one."""


@pytest.mark.parametrize(("rows", "chunk", "panels"), [(1, 1, 1), (4, 8, 2), (6, 24, 3), (5, 15, 2), (3, 27, 1)])
def test_chunks_and_panels(rows: int, chunk: int, panels: int) -> None:
    """Those that divide the tiles, that the last one leaves in part, and that no chunk fills; two channels of the last
    block are read by nothing."""
    text = SCHEDULED.format(
        schedule=f'schedule #schedule.use<"winograd_cpu", {{rows = {rows}, chunk = {chunk}, panels = {panels}}}>'
    )
    module = Parser(treadle_context(), text).parse_module()
    name_arguments(module, 2, 1)
    x, filters = random(2, 3, 7, 6, 4), random(20, 10, 3, 3)
    x[:, 2, :, :, 2:] = np.nan
    matrix = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    signs = np.array([-1, 1, 1, 1])[:, None]  # those of the rows of B^T in `winograd.py`
    matrix = signs * matrix
    u = np.einsum("pi,qj,ocij->pqco", matrix, matrix, filters.astype(np.float64)).reshape(16, 10, 20).astype(np.float32)
    program = compile_programs([print_program("tiles", module, "sse2", after="schedule")], "sse2")["tiles"]
    (got,) = program.run([x, u])
    image = x.transpose(0, 1, 4, 2, 3).reshape(2, 12, 7, 6)[:, :10]
    wanted = convolved(image, filters, (1, 1, 1, 1)).reshape(2, 5, 4, 7, 6).transpose(0, 1, 3, 4, 2)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


def anchor() -> WinogradConvOp:
    module = Parser(treadle_context(), SCHEDULED.format(schedule="")).parse_module()
    fused = next(op for op in module.walk() if isinstance(op, FusedOp))
    assert str(default_schedule(fused, Target.parse("sse2")).template.data) == "winograd_cpu"
    found = anchor_of(fused)
    assert isinstance(found, WinogradConvOp)
    return found


def test_blocks_are_even_and_no_larger_than_the_convolution() -> None:
    template, target = TEMPLATES["winograd_cpu"], Target.parse("sse2")
    choices = template.canonical(anchor(), {"rows": 2, "chunk": 20, "panels": 64}, target)
    assert choices == {"rows": 2, "chunk": 12, "panels": 3}
    candidates = list(template.candidates(anchor(), target))
    assert len(candidates) == len({tuple(sorted(each.items())) for each in candidates})
    assert all(template.canonical(anchor(), each, target) == each for each in candidates)


def test_tiles_that_fit_no_registers_are_rejected() -> None:
    template, target = TEMPLATES["winograd_cpu"], Target.parse("sse2")
    with pytest.raises(TreadleError, match=r"a tile of 8 rows by 2 vectors has 2 rows too many for 16 registers"):
        template.check(anchor(), {"rows": 8, "chunk": 8, "panels": 1}, target, "here")
    with pytest.raises(TreadleError, match=r"tiles of 4 rows overrun a chunk of 6 rows by 2"):
        template.check(anchor(), {"rows": 4, "chunk": 6, "panels": 1}, target, "here")


def estimate(rows: int, chunk: int, panels: int) -> float:
    of, target = anchor(), Target.parse("sse2{cores=2}")
    return estimated_cycles(of, {"rows": rows, "chunk": chunk, "panels": panels}, target, Extents.of(of, target))


def test_estimates_ask_for_equal_work_of_all_cores() -> None:
    """24 tiles in two chunks, in three, of which one core computes two, and in one, by panels and by none."""
    assert estimate(6, 12, 3) < estimate(4, 8, 3)
    assert estimate(6, 12, 3) < estimate(6, 24, 2) < estimate(6, 24, 3)
