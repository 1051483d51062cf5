"""The GPU templates over many shapes, printed and emulated with all checks: primes, ones, less than a tile.

The kernels of one template share a module, hence one compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.reference import evaluate_module
from treadle.compiler import lower
from treadle.dialects.graph import BinaryOp, ConvOp, MatmulOp, PadOp, PoolOp, SliceOp, TransposeOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.knobs import Knobs
from treadle.target import Target

TARGET = Target.parse("sm_80")
Shape = tuple[int, ...]
Build = Callable[[Graph, int], SSAValue]

PRODUCTS: list[tuple[Shape, Shape]] = [
    *(((m, k), (k, n)) for m, k, n in ((1, 3, 4099), (65, 1, 67), (67, 8, 64), (128, 16, 128), (61, 7, 127))),
    *(((m, k), (k, n)) for m, k, n in ((64, 64, 96), (127, 20, 36), (4100, 5, 1), (2, 31, 2053), (96, 33, 64))),
    ((3, 40, 12), (3, 12, 44)),
    ((2, 3, 33, 16), (2, 3, 16, 32)),
    ((70, 9), (5, 9, 20)),
    ((4, 31, 17), (17, 64)),
]


def _product(g: Graph, first: int) -> SSAValue:
    return g.add(UnaryOp("relu", g.add(MatmulOp(g[first], g[first + 1]))))


def _turned_product(g: Graph, first: int) -> SSAValue:
    a, b = (g.add(TransposeOp(g[n], [1, 0])) for n in (first, first + 1))
    return g.add(MatmulOp(a, b))


TRANSPOSES: list[tuple[Shape, list[int]]] = [
    *((shape, [1, 0]) for shape in ((32, 32), (31, 33), (8, 129), (64, 8), (97, 101), (100, 36), (256, 40))),
    *((shape, [0, 2, 3, 1]) for shape in ((1, 8, 5, 7), (2, 16, 14, 14), (3, 33, 1, 9), (2, 64, 7, 7), (1, 24, 8, 8))),
    *((shape, [0, 3, 1, 2]) for shape in ((2, 6, 6, 24), (1, 13, 1, 17), (3, 4, 4, 32), (1, 7, 7, 64))),
    *((shape, [0, 2, 3, 1]) for shape in ((2, 20, 3, 16), (1, 33, 2, 8))),
    ((9, 2, 40), [2, 1, 0]),
    ((5, 11, 13), [2, 0, 1]),
]


def _transposes(shape: Shape, permutation: Sequence[int]) -> Build:
    return lambda g, first: g.add(UnaryOp("neg", g.add(TransposeOp(g[first], permutation))))


def _cut(g: Graph, first: int) -> SSAValue:
    """An offset access: every row of a slice, turned."""
    part = g.add(SliceOp(g[first], [1, 3], [1, 1], [24, 40]))
    return g.add(TransposeOp(part, [1, 0]))


def _padded(g: Graph, first: int) -> SSAValue:
    """A predicated access, turned, and a read that is consecutive along the result."""
    zero = g.constant(np.zeros((), np.float32))
    padded = g.add(PadOp("constant", g[first], zero, [1, 2, 3, 4]))
    return g.add(BinaryOp("add", g.add(TransposeOp(padded, [1, 0])), g[first + 1]))


POINTWISE: list[Shape] = [
    *((n,) for n in (1, 7, 64, 255, 1024, 4099)),
    *((3, 5, 7), (16, 49), (2, 3, 4, 5), (33, 32), (128, 100), (1, 17, 1), (300, 8), (31, 31)),
]


def _pointwise(g: Graph, first: int) -> SSAValue:
    return g.add(BinaryOp("mul", g.add(UnaryOp("exp", g[first])), g[first + 1]))


Window = tuple[str, Shape, int, int, int]
"""What, the input's shape, window, step, padding."""
WINDOWS: list[Window] = [
    *((kind, (2, 4, h, w), 3, 2, 1) for kind in ("max", "avg") for h, w in ((33, 31), (34, 40), (65, 16), (40, 57))),
    *(("max", (1, 16, h, w), 2, 2, 0) for h, w in ((24, 48), (26, 46), (23, 62), (64, 17))),
    *(("depthwise", (1, 8, h, w), 3, 1, 1) for h, w in ((16, 17), (19, 14), (31, 13), (64, 7), (18, 18), (2, 131))),
    *(("depthwise", (2, 6, h, w), 5, 2, 2) for h, w in ((40, 23), (31, 31), (64, 12), (17, 61))),
    *(("grouped", (1, 8, h, w), 3, 1, 1) for h, w in ((17, 17), (16, 32), (29, 9), (5, 97), (64, 8))),
    *(("grouped", (2, 8, h, w), 3, 3, 0) for h, w in ((67, 34), (48, 49), (40, 70))),
]


def _window(kind: str, shape: Shape, size: int, step: int, pad: int) -> tuple[Build, list[Shape]]:
    if kind in ("max", "avg"):
        return lambda g, n: g.add(PoolOp(kind, g[n], [size] * 2, [step] * 2, [pad] * 4, [1, 1])), [shape]
    groups = shape[1] if kind == "depthwise" else shape[1] // 2
    weights = (shape[1], shape[1] // groups, size, size)
    return lambda g, n: g.add(ConvOp(g[n], g[n + 1], [step] * 2, [pad] * 4, [1, 1], groups)), [shape, weights]


def _pooled(g: Graph, first: int) -> SSAValue:
    return g.add(PoolOp("max", g[first], [3, 3], [2, 2], [1] * 4, [1, 1]))


SUITES: dict[str, Sequence[tuple[Build, Sequence[Shape]]]] = {
    "products": [(_product, list(shapes)) for shapes in PRODUCTS]
    + [(_turned_product, [(k, m), (n, k)]) for m, k, n in ((64, 8, 64), (67, 13, 66), (36, 20, 128), (128, 12, 5))],
    "slices": [(_product, [(m, k), (k, n)]) for m, k, n in ((32, 512, 64), (17, 265, 33), (64, 1040, 16))]
    + [(_turned_product, [(384, 36), (20, 384)]), (_product, [(2, 16, 256), (2, 256, 24)])],
    "transposes": [(_transposes(shape, order), [shape]) for shape, order in TRANSPOSES]
    + [(_cut, [(40, 50)]), (_padded, [(29, 58), (64, 33)])],
    "windows": [_window(*window) for window in WINDOWS],
    "pointwise": [(_pointwise, [shape, shape]) for shape in POINTWISE]
    + [(_pointwise, [shape, shape[-1:]]) for shape in ((40, 64), (3, 7), (5, 12, 16))]
    + [(_pooled, [(2, 3, 12, 12)]), (_pooled, [(1, 2, 9, 15)])],
}


def suite(name: str) -> tuple[Graph, ModuleOp]:
    """One module with every case of a suite."""
    cases = SUITES[name]
    shapes = [shape for _, each in cases for shape in each]
    graph = Graph(*(random(*shape, seed=n) for n, shape in enumerate(shapes)))
    results: list[SSAValue] = []
    first = 0
    for build, each in cases:
        results.append(build(graph, first))
        first += len(each)
    return graph, graph.module(*results)


@pytest.mark.parametrize("name", list(SUITES))
def test_shapes_agree_with_numpy_and_are_clean(name: str, emulator_knobs: Knobs) -> None:
    graph, module = suite(name)
    expected = evaluate_module(module, graph.inputs)
    lower(treadle_context(), module, TARGET)
    results, reports = EmulatedProgram(module, tuple(CHECKS), knobs=emulator_knobs).run(graph.inputs)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))
    assert reports and not [str(report) for report in reports if report.findings]


def test_the_suites_use_every_template() -> None:
    used: set[str] = set()
    for name in SUITES:
        _, module = suite(name)
        lower(treadle_context(), module, TARGET, to="schedule")
        uses = (op.attributes.get("schedule") or op.properties.get("schedule") for op in module.walk())
        used |= {use.template.data for use in uses if isinstance(use, UseAttr)}
    assert used >= {"matmul_simt", "transpose_cuda", "window_cuda", "rule_cuda"}


@pytest.mark.slow
def test_a_large_prime_size(emulator_knobs: Knobs) -> None:
    """M = N = K = 2039, on which spaces of divisors fail. Source: Hidet (ASPLOS 2023), section 3.3."""
    graph = Graph(random(2039, 2039, seed=1), random(2039, 2039, seed=2))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, TARGET)
    (result,), _ = EmulatedProgram(module, (), knobs=emulator_knobs).run(graph.inputs)
    exact = graph.inputs[0].astype(np.float64) @ graph.inputs[1].astype(np.float64)
    # A sum of K terms in f32 errs by at most about K / 2 ulps of the sum of the terms' sizes.
    sizes = np.abs(graph.inputs[0]).astype(np.float64) @ np.abs(graph.inputs[1]).astype(np.float64)
    assert (np.abs(result - exact) <= 2039 / 2 * np.finfo(np.float32).eps * sizes).all()
