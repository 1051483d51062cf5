"""graph-split-k: the sum of the slices is the product, and every multiprocessor gets a block."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from tests.helpers.graphs import Graph, assert_same_values, operators, random
from treadle.compiler import lower
from treadle.dialects.graph import BinaryOp, LayerNormOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.graph_split_k import ELEMENTWISE, TERMS, TILE, GraphSplitKPass, slices_of
from treadle.target import Target

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((64, 1024), (1024, 64)),
        ((16, 400), (400, 17)),
        ((31, 257), (257, 33)),
        ((2, 20, 384), (2, 384, 24)),
        ((2, 3, 16, 509), (2, 3, 509, 16)),
        ((33, 521), (521, 70)),
    ],
)
def test_values_stay(a: Shape, b: Shape) -> None:
    graph = Graph(random(*a, seed=1), random(*b, seed=2))
    result = graph.add(UnaryOp("tanh", graph.add(MatmulOp(graph[0], graph[1]))))
    # Sums of up to 1024 terms in another order: their rounding errors differ by about the root of that many ulps.
    module = assert_same_values(graph, [result], [GraphSplitKPass()], tolerance=2e-6 * a[-1] ** 0.5)
    product = next(op for op in module.walk() if isinstance(op, MatmulOp))
    assert ("reduction" in operators(module)) == (product.shape[-3] > ELEMENTWISE)


def _product(a: Shape, b: Shape) -> MatmulOp:
    graph = Graph(np.zeros(a, np.float32), np.zeros(b, np.float32))
    return MatmulOp(graph[0], graph[1])


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize(("m", "n"), [(16, 16), (64, 64), (128, 768), (197, 384), (512, 512), (2048, 2048)])
@pytest.mark.parametrize("k", [64, 300, 768, 2039, 4096, 25088])
def test_slices_fill_the_device_and_are_long_enough(m: int, n: int, k: int, target: str) -> None:
    on = Target.parse(target)
    blocks = ceil(m / TILE) * ceil(n / TILE)
    slices = slices_of(_product((m, k), (k, n)), on)
    if 2 * blocks > on.multiprocessors:
        assert slices == 1
        return
    assert slices == 1 or k // slices >= TERMS - 8
    assert slices * blocks >= on.multiprocessors or slices == max(1, k // TERMS)
    assert slices * blocks <= 2 * on.multiprocessors + 2 * blocks


def test_blocks_before_and_after() -> None:
    """64 x 64 from 8192 terms: before, one tile of that size; after, 64 slices."""

    def grids(split: bool) -> list[int]:
        graph = Graph(np.zeros((64, 8192), np.float32), np.zeros((8192, 96), np.float32), np.zeros(96, np.float32))
        product = graph.add(MatmulOp(graph[0], graph[1]))
        module = graph.module(graph.add(UnaryOp("relu", graph.add(BinaryOp("add", product, graph[2])))))
        if split:
            lower(treadle_context(), module, Target.parse("sm_80"), to="loops")
        else:
            lower(treadle_context(), module, Target.parse("sm_80"), after="graph", to="loops")
        return [op.grid.value.data for op in module.walk() if isinstance(op, FuncOp)]

    (whole,) = grids(False)
    slices, total = grids(True)
    assert whole < 108 <= slices
    assert total >= 1


def test_prologues_epilogues_and_slices_make_two_kernels() -> None:
    graph = Graph(random(300, 64, seed=1), random(300, 40, seed=2), random(40, seed=3))
    turned = graph.add(TransposeOp(graph[0], [1, 0]))
    product = graph.add(MatmulOp(turned, graph[1]))
    module = graph.module(graph.add(UnaryOp("relu", graph.add(BinaryOp("add", product, graph[2])))))
    lower(treadle_context(), module, Target.parse("sm_80"), to="plan")
    assert [op.sym_name.data for op in module.walk() if isinstance(op, FuncOp)] == ["matmul", "add_relu"]


def test_a_normalisation_adds_a_few_slices_up_itself() -> None:
    """With bias and residual, which only it reads: the sum is never stored."""
    shapes = ((128, 768), (768, 768), (768,), (128, 768), (768,), (768,))
    graph = Graph(*(random(*shape, seed=n) for n, shape in enumerate(shapes)))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    total = graph.add(BinaryOp("add", graph.add(BinaryOp("add", product, graph[2])), graph[3]))
    module = graph.module(graph.add(LayerNormOp(total, graph[4], graph[5], 1, 1e-5)))
    lower(treadle_context(), module, Target.parse("sm_80"), to="plan")
    assert [op.sym_name.data for op in module.walk() if isinstance(op, FuncOp)] == ["matmul", "add_layer_norm"]
