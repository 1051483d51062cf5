"""Kernels of nests: whatever is tiled, arranged and marked how, they compute what the definition says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import Operation, SSAValue

from tests.helpers.graphs import Graph
from tests.helpers.program_batch import (
    Backend,
    CompiledProgram,
    PrintedProgram,
    ProgramBatch,
    compile_programs,
    print_program,
)
from treadle.backends.reference import evaluate_module
from treadle.compiler import lower
from treadle.dialects.graph import (
    BinaryOp,
    ConvOp,
    FusedOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ArrangeOp, AxesOp, FuseOp, MarkOp, ProgramOp, SplitOp
from treadle.dialects.schedule.tiling import Role
from treadle.passes.schedule.anchor import anchor_of
from treadle.schedules.limits import LimitError
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.target import Target

Array = NDArray[Any]
Compiled = ProgramBatch[PrintedProgram, CompiledProgram]
CPU = Target.parse("cpu")
MOST_UNROLLED = 48
"""Accumulators: what is unrolled takes the compiler's time."""
PROGRAMS = 4
"""Random programs for each definition and size."""


@dataclass(frozen=True)
class Case:
    """An operator on tensors of some shapes, perhaps with a neighbour that is fused behind it."""

    shapes: tuple[tuple[int, ...], ...]
    operator: Callable[[Graph], Operation]
    epilogue: bool = False

    def inputs(self) -> list[Array]:
        generator = np.random.default_rng(0)
        return [generator.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def module(self) -> ModuleOp:
        """As graph operators."""
        graph = Graph(*self.inputs())
        value = graph.add(self.operator(graph))
        return graph.module(graph.add(UnaryOp("relu", value)) if self.epilogue else value)


def convolution(stride: int, pad: int, groups: int, dilation: int = 1) -> Callable[[Graph], Operation]:
    return lambda g: ConvOp(g[0], g[1], [stride] * 2, [pad] * 4, [dilation] * 2, groups)


CASES: Mapping[str, Case] = {
    "matmul": Case(((16, 32), (32, 64)), lambda g: MatmulOp(g[0], g[1])),
    "ragged matmul": Case(((7, 5), (5, 33)), lambda g: MatmulOp(g[0], g[1]), epilogue=True),
    "matmul of one": Case(((1, 1), (1, 1)), lambda g: MatmulOp(g[0], g[1])),
    "batched matmul": Case(((3, 5, 4), (3, 4, 17)), lambda g: MatmulOp(g[0], g[1])),
    "grouped convolution": Case(((1, 8, 9, 9), (12, 2, 3, 3)), convolution(2, 1, 4), epilogue=True),
    "depthwise convolution": Case(((1, 6, 7, 7), (6, 1, 3, 3)), convolution(1, 1, 6)),
    "dilated convolution": Case(((1, 4, 9, 9), (8, 2, 3, 3)), convolution(1, 2, 2, 2)),
    "max pooling": Case(((1, 3, 9, 9),), lambda g: PoolOp("max", g[0], [3, 3], [2, 2], [1] * 4, [1, 1])),
    "sum of rows": Case(((13, 21),), lambda g: ReductionOp("add", g[0], [1], keep=False)),
    "maximum of columns": Case(((13, 21),), lambda g: ReductionOp("max", g[0], [0], keep=False)),
    "product of all": Case(((5, 7),), lambda g: ReductionOp("mul", g[0], [0, 1], keep=True)),
    "elementwise": Case(((9, 33), (33,)), lambda g: BinaryOp("add", g[0], g[1])),
    "transpose": Case(((9, 33),), lambda g: TransposeOp(g[0], [1, 0])),
}


def random_program(workload: Workload, draw: random.Random) -> ProgramOp:
    """Axes fused and split at random, levels dealt to roles in a legal order, the innermost one perhaps a vector."""
    extents, spatial = workload.extents, workload.spatial
    axes = AxesOp(spatial, len(extents) - spatial)
    body: list[Operation] = [axes]
    wholes: list[tuple[SSAValue, bool, int]] = [(axis, n >= spatial, extents[n]) for n, axis in enumerate(axes.axes)]
    if len(wholes) > 1 and draw.random() < 0.5:
        n = draw.randrange(len(wholes) - 1)
        (a, kind, x), (b, other, y) = wholes[n], wholes[n + 1]
        if kind == other:
            body.append(fused := FuseOp([a, b]))
            wholes[n : n + 2] = [(fused.axis, kind, x * y)]
    levels: list[list[tuple[SSAValue, bool]]] = []
    for axis, kind, extent in wholes:
        count = draw.randrange(3)
        if count == 0 or extent == 1:
            levels.append([(axis, kind)])
            continue
        factors = [draw.choice((1, 2, 3, 4, 8, 16)) for _ in range(count)]
        body.append(split := SplitOp(axis, factors))
        levels.append([(level, kind) for level in split.levels])
    body += _arranged(levels, draw)
    return ProgramOp("random", "cpu", body)


def _arranged(levels: list[list[tuple[SSAValue, bool]]], draw: random.Random) -> list[Operation]:
    """The levels in an order that keeps each axis's outermost first; spatial ones first in blocks, then repeated."""
    order: list[tuple[SSAValue, bool]] = []
    left = [list(each) for each in levels]
    while any(left):
        each = draw.choice([each for each in left if each])
        order.append(each.pop(0))
    blocks = 0
    while blocks < len(order) - 1 and not order[blocks][1] and draw.random() < 0.6:
        blocks += 1
    groups: list[tuple[Role, list[SSAValue]]] = [("block", [value for value, _ in order[:blocks]])] if blocks else []
    for value, is_reduction in order[blocks:]:
        role: Role = "loop" if is_reduction else "repeat"
        if groups and groups[-1][0] == role and draw.random() < 0.7:
            groups[-1][1].append(value)
        else:
            groups.append((role, [value]))
    found: list[Operation] = [ArrangeOp(groups)]
    if groups[-1][0] == "repeat" and draw.random() < 0.7:
        found.append(MarkOp("vector", order[-1][0]))
    return found


def _accumulators(program: ProgramOp, workload: Workload) -> int:
    try:
        return nest_of(program, {}, workload, CPU).accumulators
    except LimitError:
        return MOST_UNROLLED + 1


def scheduled(case: Case, seed: int) -> ModuleOp:
    """The case after stage `schedule`, its group scheduled by a random program."""
    module, draw = case.module(), random.Random(seed)
    lower(treadle_context(), module, CPU, after="graph", to="schedule")
    groups = [op for op in module.walk() if isinstance(op, FusedOp)]
    fused = groups[-1]
    workload = workload_of(anchor_of(fused))
    program = random_program(workload, draw)
    while _accumulators(program, workload) > MOST_UNROLLED:
        program = random_program(workload, draw)
    program.verify()
    module.body.block.add_op(program)
    fused.schedule = SymbolRefAttr("random")
    module.verify()
    return module


NAMES = [f"{name} {seed}" for name in CASES for seed in range(PROGRAMS)]


def _lowered(name: str) -> Callable[[], ModuleOp]:
    case, _, seed = name.rpartition(" ")
    return lambda: scheduled(CASES[case], int(seed))


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    backend = Backend(partial(print_program, after="schedule"), compile_programs)
    return ProgramBatch({name: _lowered(name) for name in NAMES}, backend)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_nests(compiled: Compiled, name: str) -> None:
    case = CASES[name.rpartition(" ")[0]]
    inputs = case.inputs()
    (actual,) = compiled[name].run(inputs)
    (expected,) = evaluate_module(_wide(case), [each.astype(np.float64) for each in inputs])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


def _wide(case: Case) -> ModuleOp:
    """The case in float64."""
    graph = Graph(*(each.astype(np.float64) for each in case.inputs()))
    value = graph.add(case.operator(graph))
    return graph.module(graph.add(UnaryOp("relu", value)) if case.epilogue else value)
