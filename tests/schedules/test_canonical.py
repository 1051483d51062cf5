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


CASES = {
    "matmul_cpu": (((5, 7), (7, 33)), ((40, 16), (16, 64)), ((1, 16), (16, 3)), ((2, 9, 8), (2, 8, 32))),
    "generic_cpu": (((3, 5),), ((100, 64),), ((1,),), ((2, 3, 16, 16),)),
    "row_cpu": (((5, 40),), ((64, 128),), ((1, 7),), ((33, 16),)),
    "reduce_cpu": (((5, 40),), ((64, 128),), ((1, 16),)),
}
OPERATOR = {"matmul_cpu": "matmul", "generic_cpu": "relu", "row_cpu": "softmax", "reduce_cpu": "sum"}


@pytest.mark.parametrize(("name", "shapes"), [(name, shapes) for name, cases in CASES.items() for shapes in cases])
def test_equal_kernels_are_one_candidate(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """A sample of the space, and the default: each is cut into as many blocks as its canonical combination."""
    of, template = anchor(*shapes, operator=OPERATOR[name]), TEMPLATES[name]
    assert template.fits(of)
    draw, space = random.Random(0), template.space(of, CPU)
    drawn = ({knob.name: draw.choice(knob.values) for knob in template.knobs} for _ in range(400))
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
    assert candidates == sorted({str(template.canonical(of, choices, CPU)) for choices in template.space(of, CPU)})


def test_the_candidates_are_few() -> None:
    of, template = anchor((49, 64), (64, 64), operator="matmul"), TEMPLATES["matmul_cpu"]
    assert len(list(template.candidates(of, CPU))) * 20 < template.space(of, CPU).combinations
