"""Random schedule programs of nests for small anchors of every kind, for CPUs and GPUs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from tests.helpers.graphs import Graph
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    BinaryOp,
    ConvOp,
    ConvTransposeOp,
    FusedOp,
    MatmulOp,
    PoolOp,
    ReductionOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ArrangeOp, AxesOp, FuseOp, MarkOp, ProgramOp, SplitOp, StageOp
from treadle.dialects.schedule.tiling import Role
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.target import Target
from treadle.target.options import CompileOptions

Array = NDArray[Any]
MOST_UNROLLED = 48
"""Accumulators: what is unrolled takes the compiler's time."""
MOST_THREADS = 128
"""Of a block: the emulator runs one after the other."""


@dataclass(frozen=True)
class Case:
    """An operator on tensors of some shapes, perhaps with neighbours that are fused before and behind it."""

    shapes: tuple[tuple[int, ...], ...]
    operator: Callable[[Graph, SSAValue], Operation]
    prologue: Callable[[SSAValue], Operation] | None = None
    epilogue: bool = False
    dtype: type[np.floating[Any]] = np.float32

    def module(self, *, wide: bool = False) -> ModuleOp:
        """As graph operators, of float64 if it is wide."""
        graph = Graph(*self.inputs(wide=wide))
        first = graph[0] if self.prologue is None else graph.add(self.prologue(graph[0]))
        value = graph.add(self.operator(graph, first))
        return graph.module(graph.add(UnaryOp("relu", value)) if self.epilogue else value)

    def inputs(self, *, wide: bool = False) -> list[Array]:
        """Its operands, as float64 if they are wide."""
        generator = np.random.default_rng(0)
        drawn = [generator.standard_normal(shape).astype(self.dtype) for shape in self.shapes]
        return [each.astype(np.float64) for each in drawn] if wide else drawn

    def expected(self) -> Array:
        """Its definition in float64."""
        (result,) = evaluate_module(self.module(wide=True), self.inputs(wide=True))
        return result


def convolution(
    rank: int, stride: int, pad: int, groups: int = 1, dilation: int = 1
) -> Callable[[Graph, SSAValue], Operation]:
    """Of an input padded on all sides."""
    return lambda g, x: ConvOp(x, g[1], [stride] * rank, [pad] * 2 * rank, [dilation] * rank, groups)


def product(g: Graph, a: SSAValue) -> Operation:
    """Of the first two operands."""
    return MatmulOp(a, g[1])


def turned(x: SSAValue) -> Operation:
    """A matrix transposed: what is read is not consecutive."""
    return TransposeOp(x, [1, 0])


CASES: Mapping[str, Case] = {
    "matmul": Case(((16, 32), (32, 64)), product),
    "ragged matmul": Case(((7, 5), (5, 33)), product, epilogue=True),
    "matmul of one": Case(((1, 1), (1, 1)), product),
    "row times matrix": Case(((1, 37), (37, 19)), product, epilogue=True),
    "batched matmul": Case(((3, 5, 4), (3, 4, 17)), product),
    "transposed matmul": Case(((12, 20), (12, 24)), product, prologue=turned),
    "matmul of exponentials": Case(((11, 13), (13, 8)), product, prologue=lambda x: UnaryOp("exp", x), epilogue=True),
    "convolution in 1 dimension": Case(((2, 3, 19), (5, 3, 3)), convolution(1, 2, 1)),
    "convolution": Case(((1, 4, 8, 8), (8, 4, 3, 3)), convolution(2, 1, 1), epilogue=True),
    "convolution in 3 dimensions": Case(((1, 2, 5, 5, 4), (3, 2, 3, 2, 1)), convolution(3, 1, 0)),
    "grouped convolution": Case(((1, 8, 9, 9), (12, 2, 3, 3)), convolution(2, 2, 1, 4), epilogue=True),
    "depthwise convolution": Case(((1, 6, 7, 7), (6, 1, 3, 3)), convolution(2, 1, 1, 6)),
    "dilated convolution": Case(((1, 4, 9, 9), (8, 2, 3, 3)), convolution(2, 1, 2, 2, 2)),
    "transposed convolution": Case(
        ((1, 3, 5, 5), (3, 4, 3, 3)),
        lambda g, x: ConvTransposeOp(x, g[1], [2, 2], [1] * 4, [1, 1], 1, [1, 1]),
    ),
    "max pooling": Case(((1, 3, 9, 9),), lambda _, x: PoolOp("max", x, [3, 3], [2, 2], [1] * 4, [1, 1])),
    "sum of rows": Case(((13, 21),), lambda _, x: ReductionOp("add", x, [1], keep=False)),
    "maximum of columns": Case(((13, 21),), lambda _, x: ReductionOp("max", x, [0], keep=False)),
    "product of all": Case(((5, 7),), lambda _, x: ReductionOp("mul", x, [0, 1], keep=True)),
    "elementwise": Case(((9, 33), (33,)), lambda g, x: BinaryOp("add", x, g[1])),
    "transpose": Case(((9, 33),), lambda _, x: TransposeOp(x, [1, 0])),
}


def random_program(workload: Workload, target: Target, draw: random.Random, *, is_plain: bool) -> ProgramOp:
    """Axes fused and split at random, levels dealt to roles in a legal order, reads staged wherever they may be."""
    program = ProgramOp("random", target.kind, _levels(workload, target, draw, is_plain=is_plain))
    for read in [] if is_plain else range(len(workload.reads)):
        for _ in range(2):
            staged = program.clone()
            last = staged.body.block.last_op
            arrange = next(op for op in staged.instructions if isinstance(op, ArrangeOp))
            assert last is not None
            staged.body.block.insert_op_after(_random_stage(read, arrange, target, draw), last)
            if draw.random() < 0.6 and _replays(staged, workload, target):
                program = staged
    return program


def _random_stage(read: int, arrange: ArrangeOp, target: Target, draw: random.Random) -> StageOp:
    levels = [level for role, values in arrange.groups if role in ("block", "loop") for level in values]
    level = draw.choice(levels or list(arrange.levels))
    if not target.is_cuda or draw.random() < 0.3:
        return StageOp(read, level, "register")
    buffers = draw.choice((1, 2, 2, 3))
    is_async = buffers > 2 or (buffers == 2 and draw.random() < 0.3)
    return StageOp(read, level, "shared", draw.choice((1, 2, 4)), buffers, is_async=is_async)


def _replays(program: ProgramOp, workload: Workload, target: Target) -> Nest | None:
    try:
        program.verify()
        return nest_of(program, {}, workload, target)
    except (TreadleError, VerifyException):
        return None


def _levels(workload: Workload, target: Target, draw: random.Random, *, is_plain: bool) -> list[Operation]:
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
    return body + _arranged(levels, target, draw, is_plain=is_plain)


def _arranged(
    levels: list[list[tuple[SSAValue, bool]]], target: Target, draw: random.Random, *, is_plain: bool
) -> list[Operation]:
    """The levels in an order that keeps each axis's outermost first; then blocks, threads, repeats, loops."""
    order: list[tuple[SSAValue, bool]] = []
    left = [list(each) for each in levels]
    while any(left):
        each = draw.choice([each for each in left if each])
        order.append(each.pop(0))
    blocks, slices = 0, 1 if target.is_cuda and draw.random() < 0.3 else 0
    while blocks < len(order) - 1 and (slices or not order[blocks][1]) and draw.random() < 0.6:
        slices -= order[blocks][1]
        blocks += 1
    groups: list[tuple[Role, list[SSAValue]]] = [("block", [value for value, _ in order[:blocks]])] if blocks else []
    for value, is_reduction in order[blocks:]:
        role: Role = "loop" if is_reduction else "repeat"
        if target.is_cuda and draw.random() < (0.2 if is_reduction else 0.5):
            role = "thread"
        if groups and groups[-1][0] == role and draw.random() < 0.7:
            groups[-1][1].append(value)
        else:
            groups.append((role, [value]))
    found: list[Operation] = [ArrangeOp(groups)]
    if groups[-1][0] == "repeat" or (groups[-1][0] == "loop" and not target.is_cuda and not is_plain):
        found += [MarkOp("vector", order[-1][0])] if draw.random() < 0.7 else []
    return found


def scheduled(case: Case, seed: int, target: Target, *, is_plain: bool = False) -> ModuleOp:
    """The case after stage `schedule`, its group scheduled by a random program; a plain one has loops and marks of
    spatial levels only."""
    draw = random.Random(seed)

    def drawn(workload: Workload) -> ProgramOp:
        nest, program = None, None
        while nest is None or program is None or nest.accumulators > MOST_UNROLLED or nest.threads > MOST_THREADS:
            program = random_program(workload, target, draw, is_plain=is_plain)
            nest = _replays(program, workload, target)
        return program

    return scheduled_by(case, target, drawn)


def scheduled_by(case: Case, target: Target, program_of: Callable[[Workload], ProgramOp]) -> ModuleOp:
    """The case after stage `schedule`, its last group scheduled by a program."""
    return scheduled_module(case.module(), target, program_of)


def scheduled_module(
    module: ModuleOp, target: Target, program_of: Callable[[Workload], ProgramOp], options: CompileOptions | None = None
) -> ModuleOp:
    """A module of graph operators, or of groups, after stage `schedule`, its last group scheduled by a program."""
    grouped = any(isinstance(op, FusedOp) for op in module.walk())
    after = "fuse" if grouped else "graph" if options is None else "import"
    lower(treadle_context(), module, target, after=after, to="schedule", options=options)
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    program = program_of(workload_of(anchor_of(fused)))
    module.body.block.add_op(program)
    fused.schedule = SymbolRefAttr(program.sym_name.data)
    module.verify()
    return module
