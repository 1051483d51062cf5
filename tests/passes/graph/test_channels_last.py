"""graph-channels-last keeps values for every form of convolution, and for what stands between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import f16
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, operators, random
from treadle.dialects.graph import (
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.passes.graph.graph_channels_last import GraphChannelsLastPass
from treadle.passes.graph.graph_decompose import GraphDecomposePass
from treadle.passes.graph.graph_fold_constants import GraphFoldConstantsPass
from treadle.passes.graph.graph_simplify import GraphSimplifyPass
from treadle.passes.graph.rewriting import shape_of

PASSES = [GraphDecomposePass(), GraphChannelsLastPass(), GraphFoldConstantsPass(), GraphSimplifyPass()]


@dataclass(frozen=True)
class Case:
    """Shapes of an image and of weights, and a convolution's properties."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Any convolution whose window fits: asymmetric borders, primes, groups, one to three spatial dimensions."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    groups, channels, out = draw(st.sampled_from([1, 2, 3, 7])), draw(st.integers(1, 9)), draw(st.integers(1, 11))
    kernel, dilations = each(1, 4), each(1, 2)
    spatial = tuple(d * (k - 1) + 1 + draw(st.integers(0, 6)) for k, d in zip(kernel, dilations, strict=True))
    batch = draw(st.integers(1, 3))
    return Case(
        (batch, groups * channels, *spatial),
        (groups * out, channels, *kernel),
        each(1, 3),
        each(0, 2, 2 * rank),
        dilations,
        groups,
    )


@given(convolutions())
def test_every_convolution_keeps_its_values(case: Case) -> None:
    graph = Graph(random(*case.x))
    weights = graph.constant(random(*case.w))
    y = graph.add(ConvOp(graph[0], weights, case.strides, case.pads, case.dilations, case.groups))
    left = operators(assert_same_values(graph, [y], PASSES, tolerance=1e-5))
    wide = min(case.w[1], case.w[0] // case.groups) >= 8
    assert "conv" not in left and ("matmul" in left) == (case.groups == 1 or wide)


@pytest.mark.parametrize(("channels", "out"), [(8, 8), (16, 11)])
def test_wide_groups_are_a_batch_of_products(channels: int, out: int) -> None:
    graph = Graph(random(2, 3 * channels, 7, 5))
    weights = graph.constant(random(3 * out, channels, 3, 2))
    y = graph.add(ConvOp(graph[0], weights, [2, 1], [1, 0, 2, 1], [1, 2], 3))
    module = assert_same_values(graph, [y], PASSES, tolerance=1e-5)
    (product,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert product.shape[0] == 3 and product.shape[-1] == out


@pytest.mark.parametrize(("channels", "copied"), [(3, 4), (6, 8), (4, 4), (5, 5), (1, 1)])
def test_a_narrowed_image_gets_channels_that_copies_take_whole(channels: int, copied: int) -> None:
    graph = Graph(random(1, channels, 9, 8))
    narrow = graph.add(CastOp(graph[0], f16))
    weights = graph.constant(random(8, channels, 3, 3).astype(np.float16))
    y = graph.add(ConvOp(narrow, weights, [2, 2], [1] * 4, [1, 1], 1))
    module = assert_same_values(graph, [y], PASSES, tolerance=1e-3)
    (product,) = [op for op in module.walk() if isinstance(op, MatmulOp)]
    assert product.reduction_extent == 9 * copied


def test_a_narrowed_image_with_another_reader_stays_as_it_is() -> None:
    graph = Graph(random(1, 3, 9, 8))
    narrow = graph.add(CastOp(graph[0], f16))
    weights = graph.constant(random(8, 3, 3, 3).astype(np.float16))
    y = graph.add(ConvOp(narrow, weights, [2, 2], [1] * 4, [1, 1], 1))
    other = graph.add(UnaryOp("relu", narrow))
    module = assert_same_values(graph, [y, other], PASSES, tolerance=1e-3)
    assert operators(module).count("cast") == 1


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("pads", "groups", "becomes"), [(0, 1, "matmul"), (1, 1, "matmul"), (0, 2, "compute")])
def test_transposed_convolutions(batch: int, pads: int, groups: int, becomes: str) -> None:
    graph = Graph(random(batch, 4, 5, 6))
    weights = graph.constant(random(4, 3, 2, 3))
    y = graph.add(ConvTransposeOp(graph[0], weights, [2, 3], [pads] * 4, [1, 1], groups, [0, 0]))
    left = operators(assert_same_values(graph, [y], PASSES))
    assert becomes in left and "conv_transpose" not in left


def test_operators_on_an_image_of_one_element() -> None:
    """All operands have extents of 1 only: none of them may lose its rank."""
    graph = Graph(random(1, 1, 1, 1))
    weights = graph.constant(random(1, 1, 1, 1))
    y = graph.add(ConvTransposeOp(graph[0], weights, [1, 1], [0] * 4, [1, 1], 1, [0, 0]))
    square = graph.add(BinaryOp("mul", y, graph.add(UnaryOp("exp", y))))
    assert_same_values(graph, [graph.add(BinaryOp("add", square, y))], PASSES, tolerance=1e-5)


def convolved(graph: Graph, x: SSAValue, channels: int = 6) -> SSAValue:
    """A convolution of 4 channels that keeps pixels."""
    return graph.add(ConvOp(x, graph.constant(random(channels, 4, 3, 3)), [1, 1], [1] * 4, [1, 1], 1))


def _pool(kind: str, pads: int, ceil: bool = False) -> Callable[[Graph, SSAValue], SSAValue]:
    return lambda g, x: g.add(PoolOp(kind, x, [3, 2], [2, 1], [pads] * 4, [1, 1], ceil))


def _reduction(dims: Sequence[int], keep: bool) -> Callable[[Graph, SSAValue], SSAValue]:
    return lambda g, x: g.add(ReductionOp("mean", x, dims, keep))


def _where(g: Graph, x: SSAValue) -> SSAValue:
    condition = g.add(BinaryOp("lt", x, g.constant(random(6, 1, 1))))
    return g.add(WhereOp(condition, x, g.constant(np.float32(0.5))))


def _squeeze(g: Graph, x: SSAValue) -> SSAValue:
    mean = g.add(ReductionOp("mean", x, [2, 3], True))
    scale = g.add(ConvOp(mean, g.constant(random(6, 6, 1, 1)), [1, 1], [0] * 4, [1, 1], 1))
    return g.add(BinaryOp("mul", g.add(UnaryOp("sigmoid", scale)), x))


BETWEEN: dict[str, Callable[[Graph, SSAValue], SSAValue]] = {
    "unary": lambda g, x: g.add(UnaryOp("relu", x)),
    "cast": lambda g, x: g.add(CastOp(x, f16)),
    "bias": lambda g, x: g.add(BinaryOp("add", x, g.constant(random(6, 1, 1)))),
    "bias of columns": lambda g, x: g.add(BinaryOp("add", g.constant(random(7)), x)),
    "scalar": lambda g, x: g.add(BinaryOp("mul", x, g.constant(np.float32(2)))),
    "another image": lambda g, x: g.add(BinaryOp("add", g[1], x)),
    "where": _where,
    "squeeze and excite": _squeeze,
    "maximum": _pool("max", 1),
    "maximum, rounded up": _pool("max", 0, ceil=True),
    "average": _pool("avg", 0),
    "padded average": _pool("avg", 1),
    "concat of channels": lambda g, x: g.add(ConcatOp([x, g[1], x], 1)),
    "concat of rows": lambda g, x: g.add(ConcatOp([x, g[1]], 2)),
    "slice": lambda g, x: g.add(SliceOp(x, [0, 1, 4, 0], [2, 4, 2, 7], [1, 1, -2, 1])),
    "pad": lambda g, x: g.add(PadOp("constant", x, g.constant(np.float32(3)), [0, 1, 0, 2, 0, 0, 1, 0])),
    "pad of a block": lambda g, x: g.add(PadOp("constant", x, g.constant(np.float32(3)), [0, 4, 1, 0, 0, 2, 0, 0])),
    "slice from a block on": lambda g, x: g.add(SliceOp(x, [0, 4, 0, 0], [2, 2, 5, 7], [1] * 4)),
    "mirrored": lambda g, x: g.add(PadOp("reflect", x, g.constant(np.float32(0)), [0, 0, 1, 2, 0, 0, 0, 1])),
    "resize": lambda g, x: g.add(ResizeOp(x, [2, 6, 10, 9])),
    "broadcast": lambda g, x: g.add(BroadcastOp(g.add(ReductionOp("max", x, [1], True)), [2, 3, 5, 7])),
    "mean over pixels": _reduction([2, 3], keep=False),
    "mean that keeps dimensions": _reduction([3, 2], keep=True),
    "mean over channels": _reduction([1], keep=False),
    "mean over rows": _reduction([2], keep=False),
    "mean over images": _reduction([0], keep=False),
    "mean over all": _reduction([0, 1, 2, 3], keep=False),
    "pixels in a row": lambda g, x: g.add(ReshapeOp(x, [2, 6, 35])),
    "groups of channels": lambda g, x: g.add(ReshapeOp(x, [2, 3, 2, 5, 7])),
    "flat": lambda g, x: g.add(ReshapeOp(x, [2, 210])),
    "transpose": lambda g, x: g.add(TransposeOp(x, [0, 2, 3, 1])),
    "another transpose": lambda g, x: g.add(TransposeOp(x, [3, 1, 0, 2])),
}


@pytest.mark.parametrize("name", list(BETWEEN))
def test_what_follows_a_convolution_keeps_its_values(name: str) -> None:
    graph = Graph(random(2, 4, 5, 7), random(2, 6, 5, 7))
    y = BETWEEN[name](graph, convolved(graph, graph[0]))
    assert_same_values(graph, [y], PASSES, tolerance=1e-3 if name == "cast" else 5e-6)


@pytest.mark.parametrize(
    "name", ["unary", "bias", "scalar", "where", "maximum", "padded average", "concat of channels", "pad", "resize"]
)
def test_images_are_turned_at_the_border_only(name: str) -> None:
    """Between two convolutions no transpose is left but those of the function's arguments and result."""
    graph = Graph(random(2, 4, 5, 7), random(2, 6, 5, 7))
    between = BETWEEN[name](graph, convolved(graph, graph[0]))
    weights = graph.constant(random(5, shape_of(between)[1], 1, 1))
    y = graph.add(ConvOp(between, weights, [1, 1], [0] * 4, [1, 1], 1))
    left = operators(assert_same_values(graph, [y], PASSES, tolerance=1e-5))
    arguments = 2 if name == "concat of channels" else 1
    assert left.count("transpose") == arguments + 1 and left.count("matmul") == 2
