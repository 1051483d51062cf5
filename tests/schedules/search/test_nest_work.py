"""The work of nests from the values alone is what is counted on their kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from tests.schedules.nest.random_nests import CASES, scheduled
from tests.schedules.nest.test_nest import program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, FusedOp, MatmulOp, ReductionOp, ReshapeOp, TransposeOp, UnaryOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.errors import TreadleError
from treadle.passes.loop.count_work import count_work
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.nest import Axis, Group, Level, Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.search.group_cost import GroupCost, group_cost
from treadle.schedules.search.nest_work import work_of
from treadle.schedules.search.predict import cpu_seconds
from treadle.schedules.search.work import Work
from treadle.target import Target

CPU = Target.parse("cpu")
PROGRAMS = 4
"""Random programs for each definition."""
COUNTED = [name for name in CASES if name not in ("convolution", "transposed convolution")]
"""Of the others, what caches reuse of an image's rows is approximated otherwise on the value than on the kernel."""


def both(module: ModuleOp) -> tuple[Work, Work, Nest, GroupCost]:
    """The work of the last group's nest from the value, and counted on its kernel."""
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    (scheme,) = [op for op in module.body.block.ops if isinstance(op, ProgramOp)]
    load = group_cost(anchor_of(fused))
    nest = nest_of(scheme, {}, workload_of(anchor_of(fused)), CPU)
    found = work_of(nest, load, CPU)
    lower(treadle_context(), module, CPU, after="schedule", to="loops")
    kernel = [op for op in module.walk() if isinstance(op, FuncOp)][-1]
    return found, count_work(kernel, CPU.cores), nest, load


def parts(work: Work) -> tuple[object, ...]:
    """What is compared: everything, bodies in no particular order."""
    bodies = sorted(
        tuple(round(n, 9) for n in (b.executions, b.arithmetic, b.loads, b.stores, b.chain)) for b in work.bodies
    )
    return work.blocks, work.threads, work.share, bodies, [(step.capacity, step.traffic) for step in work.reuse]


def masked(work: Work) -> float:
    """Accesses of lanes that masks guard, in a block."""
    return sum(body.executions * body.masked for body in work.bodies)


def is_aligned(nest: Nest, load: GroupCost) -> bool:
    """Whether no level ends within a digit of an address, so that the kernel's quotients simplify."""
    tensors = [*load.element.reads, load.result, *(() if load.term is None else load.term.reads)]
    for level, tensor in itertools.product(nest.levels, tensors):
        ends = itertools.accumulate((int(size) for size, _ in load.along(tensor, level.axis)[:-1]), int.__mul__)
        inner, outer = level.stride, level.stride * level.trips
        for end in ends:
            nested = not (end % outer) or not (inner % end) or (not end % inner and not outer % end)
            if level.trips > 1 and not nested:
                return False
    return True


@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("name", COUNTED)
def test_random_nests(name: str, seed: int) -> None:
    found, counted, nest, load = both(scheduled(CASES[name], seed, CPU, is_plain=True))
    if is_aligned(nest, load):
        assert parts(found) == parts(counted)
        assert masked(found) == pytest.approx(masked(counted), rel=1e-9)
    # Where quotients remain in an address, both are approximations of it.
    assert cpu_seconds(found, CPU) == pytest.approx(cpu_seconds(counted, CPU), rel=0.3)


TILED = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by (4)
%j0, %j1 = schedule.split %j by (32)
%k0, %k1 = schedule.split %k by (16)
schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
schedule.mark vector %j1
"""


def tiled(graph: Graph, result: SSAValue) -> ModuleOp:
    """A graph's module whose group of a product is scheduled by `TILED`."""
    module = graph.module(result)
    lower(treadle_context(), module, CPU, after="graph", to="schedule")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    module.body.block.add_op(program(TILED))
    fused.schedule = SymbolRefAttr("p")
    return module


def test_neighbours_of_a_group_are_counted() -> None:
    """What reads are computed from, and what follows the reduction."""
    graph = Graph(*(np.zeros(shape, np.float32) for shape in ((8, 64), (64, 96), (96,))))
    negative = graph.add(UnaryOp("neg", graph[0]))
    product = graph.add(MatmulOp(negative, graph[1]))
    found, counted, nest, load = both(tiled(graph, graph.add(BinaryOp("add", product, graph[2]))))
    assert is_aligned(nest, load)
    assert parts(found) == parts(counted)
    # 4 rows of 2 vectors: a fused operation each, and the negations that fusion left in this kernel.
    inner = max(found.bodies, key=lambda body: body.executions)
    assert load.term is not None
    assert inner.arithmetic == 4 * 2 * load.term.arithmetic
    assert sum(body.executions * body.arithmetic for body in found.bodies) - inner.executions * inner.arithmetic == 8


def test_a_transposed_result_is_counted() -> None:
    graph = Graph(*(np.zeros(shape, np.float32) for shape in ((8, 64), (64, 96))))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    found, counted, *_ = both(tiled(graph, graph.add(TransposeOp(product, [1, 0]))))
    assert parts(found) == parts(counted)


def test_a_reduction_in_blocks_is_not_counted() -> None:
    graph = Graph(np.zeros((8, 64), np.float32))
    module = graph.module(graph.add(ReductionOp("add", graph[0], [1], keep=False)))
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    i, k = Axis(0, (8,), False), Axis(1, (64,), True)
    groups = Group("block", (Level(i, 8, 1), Level(k, 4, 16))), Group("loop", (Level(k, 16, 1),))
    nest = Nest(workload_of(anchor_of(fused)), groups)
    with pytest.raises(TreadleError, match="shared reductions are counted on kernels only"):
        work_of(nest, group_cost(anchor_of(fused)), CPU)


def test_neighbours_that_reshape_are_counted() -> None:
    """An epilogue behind a change of shape, which is read by another one: each is computed once."""
    graph = Graph(*(np.zeros(shape, np.float32) for shape in ((8, 64), (64, 96), (96, 2, 4))))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    image = graph.add(ReshapeOp(graph.add(TransposeOp(product, [1, 0])), [96, 2, 4]))
    shifted = graph.add(UnaryOp("relu", graph.add(BinaryOp("add", image, graph[2]))))
    found, counted, *_ = both(tiled(graph, graph.add(TransposeOp(shifted, [1, 2, 0]))))
    assert parts(found) == parts(counted)
