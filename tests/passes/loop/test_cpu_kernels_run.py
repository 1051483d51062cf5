"""Small graphs down the whole cpu pipeline: what each pass leaves, and the compiled C, compute what the graph says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, f32, i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

import treadle
from tests.helpers.graphs import Array, Graph, random
from tests.helpers.sampling import every
from treadle.api import resolve_target
from treadle.backends.reference import evaluate_module
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    BinaryOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    LayerNormOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.registry import treadle_context
from treadle.passes.instruments import Instrument

SAFETY = 8.0
"""Rounding errors of a sum of n terms behave like a random walk: sqrt(n) units in the last place, times this."""


def accept(new: Array, old: Array, terms: int, where: str) -> None:
    """Equal shapes and types, and values as close as sums of `terms` products can be expected to be."""
    assert (new.shape, new.dtype) == (old.shape, old.dtype), where
    if new.dtype.kind != "f":
        np.testing.assert_array_equal(new, old, where)
        return
    finite = old[np.isfinite(old)]
    largest = float(np.abs(finite).max(initial=0))
    limit = SAFETY * float(np.finfo(new.dtype).eps) * terms**0.5 * largest
    np.testing.assert_allclose(new, old, rtol=0, atol=limit, err_msg=where)


@dataclass
class RunsTheSame(Instrument):
    """Interprets the module after every pass of two stages."""

    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    terms: int
    seen: int = 0

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Verifies, runs and compares."""
        if stage not in ("plan", "loops"):
            return
        module.verify()
        self.seen += 1
        for new, old in zip(run_module(module, self.inputs), self.expected, strict=True):
            accept(new, old, self.terms, f"after {step.name}")


Built = tuple[Graph, list[SSAValue], int]
"""A graph, its results, and how many terms the longest of its sums has."""


def conv(x: tuple[int, ...], w: tuple[int, ...], strides: int, pads: list[int], dilations: int, groups: int) -> Built:
    graph = Graph(random(*x))
    filters = graph.constant(random(*w))
    y = graph.add(ConvOp(graph[0], filters, [strides] * 2, pads, [dilations] * 2, groups))
    y = graph.add(BinaryOp("add", y, graph.constant(random(1, w[0], 1, 1))))
    return graph, [graph.add(UnaryOp("relu", y))], w[1] * w[2] * w[3]


def transposed_conv(kernel: tuple[int, ...], strides: list[int], pads: list[int], extra: list[int]) -> Built:
    graph = Graph(random(2, 6, 5, 7))
    y = ConvTransposeOp(graph[0], graph.constant(random(6, 4, *kernel)), strides, pads, [1, 1], 1, extra)
    return graph, [graph.add(y)], 6 * kernel[0] * kernel[1]


def pool(kind: str, kernel: int, strides: int, pads: int, ceil: bool = False) -> Built:
    graph = Graph(random(1, 3, 11, 19))
    y = PoolOp(kind, graph[0], [kernel] * 2, [strides] * 2, [pads] * 4, [1, 1], ceil)
    return graph, [graph.add(y)], kernel * kernel


def matmul(m: int, k: int, n: int, constant: bool) -> Built:
    graph = Graph(random(m, k), random(k, n))
    right = graph.constant(random(k, n)) if constant else graph[1]
    return graph, [graph.add(MatmulOp(graph[0], right))], k


def attention() -> Built:
    """Scores, their softmax, and the mixture: batched products with transposed operands."""
    graph = Graph(random(19, 2, 8), random(19, 2, 8, seed=1), random(19, 2, 8, seed=2))
    q, v = (graph.add(TransposeOp(graph[n], [1, 0, 2])) for n in (0, 2))
    k = graph.add(TransposeOp(graph[1], [1, 2, 0]))
    weights = graph.add(SoftmaxOp(graph.add(MatmulOp(q, k)), 2))
    mixed = graph.add(TransposeOp(graph.add(MatmulOp(weights, v)), [1, 0, 2]))
    return graph, [graph.add(ReshapeOp(mixed, [19, 16]))], 19


def softmax(shape: tuple[int, ...], dim: int) -> Built:
    graph = Graph(random(*shape))
    return graph, [graph.add(SoftmaxOp(graph[0], dim))], shape[dim]


def layer_norm() -> Built:
    graph = Graph(random(5, 45))
    scale, bias = graph.constant(random(45)), graph.constant(random(45, seed=1))
    return graph, [graph.add(LayerNormOp(graph[0], scale, bias, 1, 1e-5))], 45


def concat_conv() -> Built:
    graph = Graph(random(1, 3, 9, 9), random(1, 2, 9, 9))
    both = graph.add(ConcatOp([graph[0], graph[1]], 1))
    y = graph.add(ConvOp(both, graph.constant(random(4, 5, 3, 3)), [1, 1], [1, 1, 1, 1], [1, 1], 1))
    return graph, [y], 45


def gather() -> Built:
    ids = np.array([[3, -1, 0], [2, 2, 6]], np.int64)
    graph = Graph(random(7, 33), ids)
    columns = graph.add(GatherOp(graph.add(TransposeOp(graph[0], [1, 0])), graph[1], 1))
    return graph, [graph.add(GatherOp(graph[0], graph[1], 0)), columns], 1


def casts() -> Built:
    numbers = np.arange(-20, 29, dtype=np.int64).reshape(7, 7)
    graph = Graph(numbers, random(7, 7) * 3, (numbers % 3 == 0))
    floats = graph.add(CastOp(graph[0], f32))
    whole = graph.add(CastOp(graph.add(CastOp(graph[1], i32)), i64))
    bools = graph.add(CastOp(graph[0], i1))
    numbers_of_bools = graph.add(CastOp(graph[2], f32))
    moved = graph.add(TransposeOp(graph[2], [1, 0]))
    return graph, [floats, whole, bools, numbers_of_bools, moved], 1


def where_masked() -> Built:
    """A mask from memory, a comparison of floats, and one of a bool that is the same for a row."""
    graph = Graph(random(6, 35), random(6, 35) > 0, random(6, 1) > 0)
    low = graph.constant(np.float32(-1e9))
    masked = graph.add(WhereOp(graph[1], graph[0], low))
    leaky = graph.add(BinaryOp("mul", graph[0], graph.constant(np.float32(0.1))))
    positive = graph.add(BinaryOp("gt", graph[0], graph.constant(np.float32(0.0))))
    rows = graph.add(WhereOp(graph[2], graph[0], low))
    return graph, [masked, graph.add(WhereOp(positive, graph[0], leaky)), rows, positive], 1


def leaky_product() -> Built:
    """A choice by comparison after a product, whose accumulators must stay vectors."""
    graph = Graph(random(9, 20), random(20, 40))
    y = graph.add(MatmulOp(graph[0], graph[1]))
    small = graph.add(BinaryOp("mul", y, graph.constant(np.float32(0.1))))
    inside = graph.add(BinaryOp("le", y, graph.constant(np.float32(3.0))))
    positive = graph.add(BinaryOp("gt", y, graph.constant(np.float32(0.0))))
    both = graph.add(BinaryOp("and", inside, graph.add(UnaryOp("not", positive))))
    return graph, [graph.add(WhereOp(both, y, small))], 20


def elementwise() -> Built:
    graph = Graph(random(3, 27))
    positive = graph.add(UnaryOp("abs", graph[0]))
    kinds = ["neg", "sign", "sigmoid", "reciprocal", "gelu", "gelu_tanh", "exp", "tanh", "erf", "floor", "ceil"]
    kinds += ["round", "sin", "cos", "tan"]
    results = [graph.add(UnaryOp(kind, graph[0])) for kind in kinds]
    results += [graph.add(UnaryOp(kind, positive)) for kind in ("log", "sqrt", "rsqrt")]
    results += [graph.add(UnaryOp("isnan", graph[0])), graph.add(BinaryOp("pow", positive, graph[0]))]
    return graph, results, 1


def reduction(kind: str, shape: tuple[int, ...], dims: list[int]) -> Built:
    graph = Graph(random(*shape))
    y = graph.add(ReductionOp(kind, graph[0], dims, keep=False))
    return graph, [y], int(np.prod([shape[d] for d in dims]))


def reduced_bools_and_numbers() -> Built:
    graph = Graph(random(5, 18) > -2, np.arange(90, dtype=np.int32).reshape(5, 18))
    results = [graph.add(ReductionOp("and", graph[0], [d], keep=False)) for d in (0, 1)]
    return graph, [*results, graph.add(ReductionOp("add", graph[1], [0], keep=True))], 1


def resize() -> Built:
    graph = Graph(random(1, 2, 5, 6))
    return graph, [graph.add(ResizeOp(graph[0], [1, 2, 10, 18])), graph.add(ResizeOp(graph[0], [1, 2, 7, 10]))], 1


def transposes() -> Built:
    """Whole squares of vectors, ones that overhang the columns or the rows, of computed elements, and of few rows."""
    graph = Graph(random(3, 32, 48), random(37, 50), random(5, 40))
    exp = graph.add(UnaryOp("exp", graph.add(TransposeOp(graph[0], [0, 2, 1]))))
    moved = [graph.add(TransposeOp(graph[n], [1, 0])) for n in (1, 2)]
    return graph, [exp, *moved, graph.add(TransposeOp(graph[0], [2, 1, 0]))], 1


def product_by_rows(m: int, k: int, n: int) -> Built:
    """Whose right operand lies along K."""
    graph = Graph(random(2, m, k), random(2, n, k))
    return graph, [graph.add(MatmulOp(graph[0], graph.add(TransposeOp(graph[1], [0, 2, 1]))))], k


def moved_elements() -> Built:
    """Padding, slices with steps forwards and backwards, transposes."""
    graph = Graph(random(4, 21))
    padded = graph.add(PadOp("constant", graph[0], graph.constant(np.float32(0.5)), [1, 2, 0, 3]))
    mirrored = graph.add(PadOp("reflect", graph[0], graph.constant(np.float32(0.0)), [2, 3, 1, 4]))
    back = graph.add(SliceOp(padded, [4, 25], [3, 9], [-1, -2]))
    return graph, [padded, mirrored, back, graph.add(TransposeOp(mirrored, [1, 0]))], 1


CASES: dict[str, Callable[[], Built]] = {
    "conv 3x3, pads": lambda: conv((1, 3, 9, 13), (5, 3, 3, 3), 1, [1, 1, 1, 1], 1, 1),
    "conv 3x3, stride 2, uneven pads": lambda: conv((1, 3, 9, 13), (5, 3, 3, 3), 2, [0, 1, 1, 0], 1, 1),
    "conv 3x3, dilation 2": lambda: conv((2, 3, 9, 11), (4, 3, 3, 3), 1, [2, 2, 2, 2], 2, 1),
    "conv 1x1": lambda: conv((1, 6, 14, 15), (7, 6, 1, 1), 1, [0, 0, 0, 0], 1, 1),
    "conv, 2 groups": lambda: conv((1, 4, 7, 9), (6, 2, 3, 3), 1, [1, 1, 1, 1], 1, 2),
    "conv, 3 groups of 16 channels": lambda: conv((2, 48, 7, 6), (96, 16, 3, 3), 2, [1, 0, 1, 1], 1, 3),
    "conv, 2 groups of 32 channels": lambda: conv((1, 64, 5, 9), (32, 32, 1, 3), 1, [0, 1, 0, 1], 1, 2),
    "depthwise 3x3": lambda: conv((1, 5, 8, 35), (5, 1, 3, 3), 1, [1, 1, 1, 1], 1, 5),
    "depthwise 3x3, stride 2": lambda: conv((1, 5, 9, 35), (5, 1, 3, 3), 2, [1, 1, 1, 1], 1, 5),
    "depthwise 5x5": lambda: conv((1, 3, 7, 17), (3, 1, 5, 5), 1, [2, 2, 2, 2], 1, 3),
    "depthwise 5x5, stride 2": lambda: conv((1, 3, 10, 33), (3, 1, 5, 5), 2, [2, 2, 2, 2], 1, 3),
    "transposed conv": lambda: transposed_conv((2, 2), [2, 2], [0] * 4, [0, 0]),
    "transposed conv, 4x4, stride 2": lambda: transposed_conv((4, 4), [2, 2], [1] * 4, [0, 0]),
    "transposed conv, 3x5, strides 2 and 3": lambda: transposed_conv((3, 5), [2, 3], [0, 1, 2, 1], [1, 0]),
    "transposed conv, stride 1": lambda: transposed_conv((3, 2), [1, 1], [2, 0, 1, 1], [0, 0]),
    "transposed conv, more stride than kernel": lambda: transposed_conv((1, 2), [3, 3], [0] * 4, [2, 1]),
    "transposed conv, more pads than taps reach": lambda: transposed_conv((4, 4), [2, 2], [4, 4, 0, 0], [0, 0]),
    "max pool": lambda: pool("max", 3, 2, 1),
    "max pool, ceil": lambda: pool("max", 2, 2, 0, True),
    "mean pool": lambda: pool("avg", 3, 1, 1),
    "matmul, one column": lambda: matmul(20, 17, 1, False),
    "matmul, 15 columns": lambda: matmul(5, 9, 15, False),
    "matmul, 17 columns of a constant": lambda: matmul(9, 9, 17, True),
    "matmul, 33 columns": lambda: matmul(17, 12, 33, False),
    "matmul, 49 columns of a constant": lambda: matmul(1, 30, 49, True),
    "matmul by rows": lambda: product_by_rows(24, 32, 64),
    "matmul by rows, 37 terms, 21 columns": lambda: product_by_rows(9, 37, 21),
    "matmul by rows, 16 terms, 3 columns": lambda: product_by_rows(40, 16, 3),
    "transposes": transposes,
    "leaky product": leaky_product,
    "attention": attention,
    "softmax of columns": lambda: softmax((18, 7), 0),
    "softmax of rows": lambda: softmax((3, 37), 1),
    "layer norm": layer_norm,
    "concat and conv": concat_conv,
    "gather": gather,
    "casts": casts,
    "where": where_masked,
    "elementwise": elementwise,
    "sum of rows": lambda: reduction("add", (9, 50), [1]),
    "sum of columns": lambda: reduction("add", (30, 21), [0]),
    "maximum of outer and inner": lambda: reduction("max", (4, 7, 18), [0, 2]),
    "mean of all": lambda: reduction("mean", (6, 25), [0, 1]),
    "bools and numbers": reduced_bools_and_numbers,
    "resize": resize,
    "moved elements": moved_elements,
}


@pytest.mark.parametrize("build", every(2, CASES.values()), ids=CASES.keys())
def test_every_pass_and_the_compiled_code_agree(build: Callable[[], Built]) -> None:
    graph, results, terms = build()
    module = graph.module(*results)
    expected = evaluate_module(module, graph.inputs)
    compiled = treadle.compile(module, "cpu")
    same = RunsTheSame(graph.inputs, expected, terms)
    lower(treadle_context(), module, resolve_target("cpu"), to="loops", instruments=[same])
    assert same.seen > 5
    for new, old in zip(compiled(*graph.inputs), expected, strict=True):
        accept(np.asarray(new), old, terms, "compiled")
