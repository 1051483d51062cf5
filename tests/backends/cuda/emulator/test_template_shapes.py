"""The GPU templates over many shapes, printed and emulated with all checks: primes, ones, less than a tile.

Each template by itself is forced on the anchors of `template_cases.py`; groups with prologues and epilogues, which
read slices, pads and transposes, are scheduled by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.backends.cuda.emulator.forced import forced, operands_of, values_of
from tests.backends.cuda.emulator.template_cases import COVERED, DTYPES, TRUTHS, AnchorOf
from tests.helpers.graphs import Graph, random
from tests.helpers.limits import assert_within, limits_of_template
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, MatmulOp, PadOp, PoolOp, SliceOp, TransposeOp, UnaryOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import UseAttr
from treadle.environment import Environment
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.target.options import parse_precision

TARGET = Target.parse("sm_80")
FEWEST = 30
"""Shapes that a template is tried on at least, in each type."""
EVERYWHERE = [(template, dtype) for template, covered in COVERED.items() for dtype in covered.dtypes]


@cache
def fitting(template: str, dtype: str) -> tuple[tuple[AnchorOf, tuple[str, ...]], ...]:
    """The cases that the template can schedule, each with the types of its operands."""
    anchors = [(case, case(dtype)) for case in COVERED[template].cases]
    return tuple(
        (case, tuple(str(each.type) for each in operands_of(anchor)))
        for case, anchor in anchors
        if TEMPLATES[template].fits(anchor)
    )


def check(template: str, anchors: Sequence[Anchor], environment: Environment) -> None:
    """Compiles each anchor by the template, and compares what the emulator computes with its definition."""
    types = [str(anchor.type) for anchor in anchors]
    operands = [operands_of(anchor) for anchor in anchors]
    values = [values_of(anchor) for anchor in anchors]
    precision = parse_precision(TEMPLATES[template].precision)
    expected = [
        limits_of_template(template, anchor, dict(zip(read, given, strict=True)), precision)
        for anchor, read, given in zip(anchors, operands, values, strict=True)
    ]
    dtypes = [numpy_dtype(anchor.type.get_element_type()) for anchor in anchors]
    module, graph = forced(template, list(zip(anchors, values, strict=True)), TARGET)
    results, reports = EmulatedProgram(module, tuple(CHECKS), environment=environment).run(graph.inputs)
    for each in zip(results, expected, dtypes, types, strict=True):
        assert_within(*each)
    assert len(reports) == len(anchors)
    assert not [str(report) for report in reports if report.findings]


@pytest.mark.parametrize("template", COVERED)
def test_a_template_on_some_of_its_shapes(template: str, emulator_environment: Environment) -> None:
    """Three in every second type, of many types two: others in each."""
    types = [dtype for each, dtype in EVERYWHERE[::2] if each == template] or COVERED[template].dtypes[:1]
    anchors: list[Anchor] = []
    for n, dtype in enumerate(types):
        cases = fitting(template, dtype)
        step = ceil(len(cases) / (3 if len(types) < 3 else 2))
        anchors += [case(dtype) for case, _ in cases[n * step // len(types) :: step]]
    check(template, anchors, emulator_environment)


@pytest.mark.slow
@pytest.mark.parametrize(("template", "dtype"), EVERYWHERE)
def test_a_template_on_all_of_its_shapes(template: str, dtype: str, emulator_environment: Environment) -> None:
    check(template, [case(dtype) for case, _ in fitting(template, dtype)], emulator_environment)


def test_every_template_is_covered_in_every_type_that_it_claims() -> None:
    """But those of warpgroups, which do not fit most of the shapes and have tests of their own."""
    assert set(COVERED) == {name for name, template in TEMPLATES.items() if template.runs_on(TARGET)}
    for name, covered in COVERED.items():
        assert {dtype for dtype in DTYPES if fitting(name, dtype)} == set(covered.dtypes) - {TRUTHS}, name
        for dtype in covered.dtypes:
            assert len({types for _, types in fitting(name, dtype)}) >= FEWEST, (name, dtype)


Shape = tuple[int, ...]
Build = Callable[[Graph, int], SSAValue]

PRODUCTS: list[tuple[Shape, Shape]] = [
    *(((m, k), (k, n)) for m, k, n in ((65, 1, 67), (67, 8, 64), (61, 7, 127), (64, 64, 96), (96, 33, 64))),
    ((2, 3, 33, 16), (2, 3, 16, 32)),
    ((4, 31, 17), (17, 64)),
]


def _product(g: Graph, first: int) -> SSAValue:
    return g.add(UnaryOp("relu", g.add(MatmulOp(g[first], g[first + 1]))))


def _turned_product(g: Graph, first: int) -> SSAValue:
    a, b = (g.add(TransposeOp(g[n], [1, 0])) for n in (first, first + 1))
    return g.add(MatmulOp(a, b))


def _turned(g: Graph, first: int) -> SSAValue:
    return g.add(UnaryOp("neg", g.add(TransposeOp(g[first], [1, 0]))))


def _cut(g: Graph, first: int) -> SSAValue:
    """An offset access: every row of a slice, turned."""
    part = g.add(SliceOp(g[first], [1, 3], [1, 1], [24, 40]))
    return g.add(TransposeOp(part, [1, 0]))


def _padded(g: Graph, first: int) -> SSAValue:
    """A predicated access, turned, and a read that is consecutive along the result."""
    zero = g.constant(np.zeros((), np.float32))
    padded = g.add(PadOp("constant", g[first], zero, [1, 2, 3, 4]))
    return g.add(BinaryOp("add", g.add(TransposeOp(padded, [1, 0])), g[first + 1]))


def _pointwise(g: Graph, first: int) -> SSAValue:
    return g.add(BinaryOp("mul", g.add(UnaryOp("exp", g[first])), g[first + 1]))


def _pooled(g: Graph, first: int) -> SSAValue:
    return g.add(PoolOp("max", g[first], [3, 3], [2, 2], [1] * 4, [1, 1]))


SUITES: dict[str, Sequence[tuple[Build, Sequence[Shape]]]] = {
    "products": [(_product, list(shapes)) for shapes in PRODUCTS]
    + [(_turned_product, [(k, m), (n, k)]) for m, k, n in ((64, 8, 64), (67, 13, 66), (36, 20, 128), (128, 12, 5))],
    "slices": [(_product, [(m, k), (k, n)]) for m, k, n in ((32, 512, 64), (17, 265, 33), (64, 1040, 16))]
    + [(_turned_product, [(384, 36), (20, 384)]), (_product, [(2, 16, 256), (2, 256, 24)])],
    "movement": [(_turned, [shape]) for shape in ((31, 33), (256, 40))]
    + [(_cut, [(40, 50)]), (_padded, [(29, 58), (64, 33)])],
    "pointwise": [(_pointwise, [shape, shape]) for shape in ((1,), (4099,), (3, 5, 7), (128, 100))]
    + [(_pointwise, [shape, shape[-1:]]) for shape in ((40, 64), (3, 7), (5, 12, 16))]
    + [(_pooled, [shape]) for shape in ((2, 3, 12, 12), (1, 2, 9, 15), (2, 4, 65, 16))],
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
def test_shapes_agree_with_numpy_and_are_clean(name: str, emulator_environment: Environment) -> None:
    graph, module = suite(name)
    expected = evaluate_module(module, graph.inputs)
    lower(treadle_context(), module, TARGET)
    results, reports = EmulatedProgram(module, tuple(CHECKS), environment=emulator_environment).run(graph.inputs)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))
    assert reports and not [str(report) for report in reports if report.findings]


def test_the_suites_use_several_templates() -> None:
    used: set[str] = set()
    for name in SUITES:
        _, module = suite(name)
        lower(treadle_context(), module, TARGET, to="schedule")
        uses = (op.attributes.get("schedule") or op.properties.get("schedule") for op in module.walk())
        used |= {use.template.data for use in uses if isinstance(use, UseAttr)}
    assert used >= {"matmul_simt", "reduce_cuda", "transpose_cuda", "window_cuda", "generic_cuda"}


@pytest.mark.slow
def test_a_large_prime_size(emulator_environment: Environment) -> None:
    """M = N = K = 2039, on which spaces of divisors fail. Source: Hidet (ASPLOS 2023), section 3.3."""
    graph = Graph(random(2039, 2039, seed=1), random(2039, 2039, seed=2))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, TARGET)
    (result,), _ = EmulatedProgram(module, (), environment=emulator_environment).run(graph.inputs)
    exact = graph.inputs[0].astype(np.float64) @ graph.inputs[1].astype(np.float64)
    # A sum of K terms in f32 errs by at most about K / 2 ulps of the sum of the terms' sizes.
    sizes = np.abs(graph.inputs[0]).astype(np.float64) @ np.abs(graph.inputs[1]).astype(np.float64)
    assert (np.abs(result - exact) <= 2039 / 2 * np.finfo(np.float32).eps * sizes).all()
