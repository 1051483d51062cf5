"""Combinations that a search leaves out give the kernel of the one that stands for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from xdsl.ir import Operation

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, ReductionOp, SoftmaxOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.template import Anchor
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

CPU = Target.parse("cpu")


def anchor(*shapes: tuple[int, ...], operator: str) -> Anchor:
    """The anchor of one operator on tensors of these shapes."""
    graph = Graph(*(np.zeros(shape, np.float32) for shape in shapes))
    last = len(shapes[0]) - 1
    build: Mapping[str, Callable[[], Operation]] = {
        "matmul": lambda: MatmulOp(graph[0], graph[1]),
        "relu": lambda: UnaryOp("relu", graph[0]),
        "softmax": lambda: SoftmaxOp(graph[0], last),
        "sum": lambda: ReductionOp("add", graph[0], [last], keep=False),
    }
    module = graph.module(graph.add(build[operator]()))
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return anchor_of(fused)


def product_anchor(size: int, target: Target, *, weights: bool) -> Anchor:
    """The anchor of `size` cubed, by a constant in panels or by an input."""
    x = np.zeros((size, size), np.float32)
    graph = Graph(x) if weights else Graph(x, x)
    right = graph.constant(np.broadcast_to(np.float32(0.5), x.shape)) if weights else graph[1]
    module = graph.module(graph.add(MatmulOp(graph[0], right)))
    lower(treadle_context(), module, target, to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp) and isinstance(anchor_of(op), MatmulOp)]
    return anchor_of(fused)


CASES = {
    "matmul_cpu": (((5, 7), (7, 33)), ((40, 16), (16, 64)), ((1, 16), (16, 3)), ((2, 9, 8), (2, 8, 32))),
    "generic_cpu": (((3, 5),), ((100, 64),), ((1,),), ((2, 3, 16, 16),)),
    "row_cpu": (((5, 40),), ((64, 128),), ((1, 7),), ((33, 16),)),
    "reduce_cpu": (((5, 40),), ((64, 128),), ((1, 16),)),
}
OPERATOR = {"matmul_cpu": "matmul", "generic_cpu": "relu", "row_cpu": "softmax", "reduce_cpu": "sum"}


@pytest.mark.parametrize(("name", "shapes"), [(name, shapes) for name, cases in CASES.items() for shapes in cases])
def test_equal_kernels_are_one_candidate(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Some legal combinations, and the default: each is cut into as many blocks as its canonical combination."""
    of, template = anchor(*shapes, operator=OPERATOR[name]), TEMPLATES[name]
    assert template.fits(of)
    draw, space = random.Random(0), template.legal(of, CPU).pinned(**template.decided(of, CPU))
    drawn = ({knob.name: draw.choice(knob.values) for knob in space.knobs} for _ in range(400))
    sample = [choices for choices in drawn if choices in space][:15]
    assert sample
    for choices in [template.default(of, CPU), *sample]:
        canonical = template.canonical(of, choices, CPU)
        assert template.canonical(of, canonical, CPU) == canonical
        template.check(of, canonical, CPU, "test")
        usual, other = (template.build(of, each, CPU, "kernel") for each in (choices, canonical))
        assert usual.grid.value.data == other.grid.value.data


@pytest.mark.parametrize("name", list(CASES))
def test_candidates_stand_for_the_whole_space(name: str) -> None:
    of, template = anchor(*CASES[name][0], operator=OPERATOR[name]), TEMPLATES[name]
    candidates = sorted(map(str, template.candidates(of, CPU)))
    assert len(set(candidates)) == len(candidates)
    canonical = {str(template.canonical(of, choices, CPU)) for choices in template.space(of, CPU)}
    if template.listed(of, CPU) is None:
        assert candidates == sorted(canonical)
    else:
        assert set(candidates) <= canonical


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2", "neon"])
@pytest.mark.parametrize("weights", [True, False])
def test_a_product_has_few_candidates_whatever_its_size(target: str, weights: bool) -> None:
    """Hidet's space is small, and does not depend on divisors: 2039 is a prime. Source: Hidet (ASPLOS 2023), 4.3."""
    machine, template = Target.parse(target), TEMPLATES["matmul_cpu"]
    for extents in ((2039, 2048), (509, 512), (49, 48)):
        counts: list[int] = []
        for size in extents:
            of = product_anchor(size, machine, weights=weights)
            found = list(template.candidates(of, machine))
            assert len({str(each) for each in found}) == len(found) <= 200
            assert template.canonical(of, template.default(of, machine), machine) in found
            for choices in found:
                template.check(of, choices, machine, "here")
            counts.append(len(found))
        assert extents[0] < 100 or abs(counts[0] - counts[1]) <= 6, "but for tiles that happen to be even"
