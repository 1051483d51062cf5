"""graph-block-channels keeps values for every form of convolution, and for what stands between them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from xdsl.dialects.builtin import ModuleOp, f16
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, name_arguments, operators, random
from tests.helpers.program_batch import compile_programs, print_program
from tests.passes.graph.test_channels_last import BETWEEN, Case, convolutions, convolved
from treadle.backends.reference.run_module import evaluate_module
from treadle.dialects.graph import BinaryOp, CastOp, ConcatOp, ConvOp, PoolOp, ReductionOp, SliceOp, UnaryOp
from treadle.passes.graph.graph_block_channels import GraphBlockChannelsPass
from treadle.passes.graph.graph_decompose import GraphDecomposePass
from treadle.passes.graph.graph_fold_constants import GraphFoldConstantsPass
from treadle.passes.graph.graph_simplify import GraphSimplifyPass
from treadle.passes.graph.rewriting import shape_of

FOUR = GraphBlockChannelsPass("sse2")
"""Blocks of four channels: the smallest, so that small images have several, the last one in part."""
PASSES = [GraphDecomposePass(), FOUR, GraphFoldConstantsPass(), GraphSimplifyPass()]


@given(convolutions())
def test_every_convolution_keeps_its_values(case: Case) -> None:
    graph = Graph(random(*case.x))
    weights = graph.constant(random(*case.w))
    y = graph.add(ConvOp(graph[0], weights, case.strides, case.pads, case.dilations, case.groups))
    left = operators(assert_same_values(graph, [y], PASSES, tolerance=1e-5))
    fills = -(-case.w[0] // 4) * 4 <= 4 / 3 * case.w[0]
    in_blocks = case.w[1] % 4 == 0 and case.w[0] // case.groups % 4 == 0
    assert ("matmul" in left) == (fills if case.groups == 1 else in_blocks)


@pytest.mark.parametrize("name", list(BETWEEN))
def test_what_follows_a_convolution_keeps_its_values(name: str) -> None:
    graph = Graph(random(2, 4, 5, 7), random(2, 6, 5, 7))
    y = BETWEEN[name](graph, convolved(graph, graph[0]))
    assert_same_values(graph, [y], PASSES, tolerance=1e-3 if name == "cast" else 5e-6)


def conv(graph: Graph, x: SSAValue, out: int, kernel: int = 1, groups: int = 1) -> SSAValue:
    """A convolution that keeps pixels, and about the size of values."""
    terms = shape_of(x)[1] // groups * kernel**2
    weights = graph.constant(random(out, shape_of(x)[1] // groups, kernel, kernel) / np.float32(terms**0.5))
    return graph.add(ConvOp(x, weights, [1, 1], [kernel // 2] * 4, [1, 1], groups))


TURNED = [
    *((name, 6) for name in ("unary", "bias", "scalar", "maximum", "resize", "pad of a block")),
    ("padded average", 8),
]


@pytest.mark.parametrize(("name", "channels"), TURNED)
def test_images_are_turned_at_the_border_only(name: str, channels: int) -> None:
    """The argument is, and each product's result, the last one to the function's result."""
    graph = Graph(random(2, 4, 5, 7))
    y = conv(graph, BETWEEN[name](graph, convolved(graph, graph[0], channels)), 8)
    left = operators(assert_same_values(graph, [y], PASSES, tolerance=1e-5))
    assert (left.count("transpose"), left.count("matmul"), left.count("slice")) == (3, 2, 0)


@pytest.mark.parametrize("kernel", [1, 3])
def test_nothing_reads_the_lanes_beyond_the_last_channel(kernel: int) -> None:
    """The sixth channel is the last: the reciprocals of the zeros beyond it are infinite."""
    graph = Graph(random(1, 4, 5, 7))
    squares = graph.add(BinaryOp("mul", graph[0], graph[0]))
    filters = graph.constant(np.abs(random(6, 4, 1, 1)) + np.float32(0.1))
    x = graph.add(ConvOp(squares, filters, [1, 1], [0] * 4, [1, 1], 1))
    reciprocals = graph.add(BinaryOp("div", graph.constant(np.float32(1)), x))
    y = conv(graph, conv(graph, reciprocals, 6, 3, groups=6), 8, kernel)
    mean = graph.add(ReductionOp("mean", reciprocals, [2, 3], False))
    assert_same_values(graph, [y, reciprocals, mean], PASSES, tolerance=1e-5)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_too_few_channels_for_a_block_stay(channels: int) -> None:
    graph = Graph(random(1, 4, 5, 7))
    module = assert_same_values(graph, [conv(graph, graph[0], channels)], PASSES)
    assert operators(module).count("conv") == 1


def test_other_types_stay() -> None:
    graph = Graph(random(1, 4, 5, 7))
    narrow = graph.add(CastOp(graph[0], f16))
    weights = graph.constant(random(8, 4, 1, 1).astype(np.float16))
    y = graph.add(ConvOp(narrow, weights, [1, 1], [0] * 4, [1, 1], 1))
    assert operators(assert_same_values(graph, [y], PASSES, tolerance=1e-3)).count("conv") == 1


def chain(seed: int) -> tuple[Graph, list[SSAValue]]:
    """Convolutions, dense, of groups and depthwise, and what stands between them, some of it read twice."""
    choose = Random(seed)
    graph = Graph(random(choose.choice([1, 2]), choose.choice([3, 16]), choose.randint(5, 17), choose.randint(5, 17)))
    x = graph[0]
    for _ in range(6):
        channels, *_ = shape_of(x)[1:]
        step = choose.choice(["conv", "window", "depthwise", "groups", "pool", "residual", "concat", "slice"])
        if step == "depthwise":
            step_by = choose.choice([1, 2])
            weights = graph.constant(random(channels, 1, 3, 3) / np.float32(3))
            x = graph.add(ConvOp(x, weights, [step_by] * 2, [1] * 4, [1, 1], channels))
        elif step == "groups" and channels % 16 == 0:
            groups, outputs = channels // 16, 16 * choose.choice([1, 2])
            weights = graph.constant(random(groups * outputs, 16, 3, 3) / np.float32(12))
            x = graph.add(ConvOp(x, weights, [choose.choice([1, 2])] * 2, [1] * 4, [1, 1], groups))
        elif step == "pool" and min(shape_of(x)[2:]) > 3:
            kind, pads = choose.choice(["max", "avg"]), choose.choice([0, 1])
            x = graph.add(PoolOp(kind, x, [3, 3], [choose.choice([1, 2])] * 2, [pads] * 4, [1, 1]))
        elif step == "residual":
            x = graph.add(BinaryOp("add", x, conv(graph, x, channels, 3)))
        elif step == "concat":
            x = graph.add(ConcatOp([conv(graph, x, 32), conv(graph, x, 24, 3)], 1))
        elif step == "slice" and channels > 16:
            shape = shape_of(x)
            x = graph.add(SliceOp(x, [0, 16, 0, 0], [shape[0], channels - 16, *shape[2:]], [1] * 4))
        else:
            x = conv(graph, x, choose.choice([8, 16, 24, 48, 64]), 3 if step == "window" else 1)
        x = graph.add(UnaryOp("tanh", x))
    return graph, [x, graph.add(ReductionOp("mean", x, [2, 3], False))]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 12), marks=pytest.mark.slow)], ids=["few", "many"])
def test_compiled_chains(seeds: range) -> None:
    """Through the whole pipeline and the C compiler, in blocks of this machine's vectors."""
    inputs, expected, programs = list[list[np.ndarray]](), list[list[np.ndarray]](), []
    for seed in seeds:
        graph, results = chain(seed)
        module: ModuleOp = graph.module(*results)
        inputs.append(list(graph.inputs))
        expected.append(list(evaluate_module(module, graph.inputs)))
        name_arguments(module, len(graph.inputs), len(results))
        programs.append(print_program(f"chain{seed}", module))
    compiled = compile_programs(programs)
    for program, arrays, wanted in zip(programs, inputs, expected, strict=True):
        for got, want in zip(compiled[program.name].run(arrays), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=5e-6, err_msg=program.name)
