"""Works of nests, counted on values, on kernels and by hand: masks, neighbours of a group, random nests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from tests.helpers.graphs import Graph
from tests.schedules.nest.random_nests import CASES, scheduled
from tests.schedules.nest.test_nest import program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, FusedOp, MatmulOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.search.predict import cpu_seconds, cpu_terms
from treadle.schedules.work.cpu_work import Body, Reuse, Work, masked_accesses
from treadle.schedules.work.group import Group
from treadle.schedules.work.lowered import count_work
from treadle.schedules.work.recorder import work_of
from treadle.target import Target

CPU = Target.parse("cpu")
PROGRAMS = 2
"""Random programs for each definition."""
TILED = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by (4)
%j0, %j1 = schedule.split %j by (32)
%k0, %k1 = schedule.split %k by (16)
schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) repeat(%i1, %j1)
schedule.mark vector %j1
"""


def both(module: ModuleOp) -> tuple[Work, Work]:
    """The work of the last group's nest from the value, and counted on its kernel."""
    anchor = anchor_of([op for op in module.walk() if isinstance(op, FusedOp)][-1])
    (scheme,) = [op for op in module.body.block.ops if isinstance(op, ProgramOp)]
    found = work_of(Group(anchor), nest_of(scheme, {}, workload_of(anchor), CPU), CPU)
    assert isinstance(found, Work)
    lower(treadle_context(), module, CPU, after="schedule", to="loops")
    kernel = [op for op in module.walk() if isinstance(op, FuncOp)][-1]
    return found, count_work(kernel, CPU)


def masked(work: Work) -> float:
    """Accesses of lanes that masks guard, in a block."""
    return sum(body.executions * body.masked for body in work.bodies)


def product(columns: int, text: str, *, shifted: bool = False) -> ModuleOp:
    """8 x 64 times 64 x columns, scheduled by a program; `shifted`: and a row added."""
    graph = Graph(*(np.zeros(shape, np.float32) for shape in ((8, 64), (64, columns), (columns,))))
    result = graph.add(MatmulOp(graph[0], graph[1]))
    if shifted:
        result = graph.add(BinaryOp("add", result, graph[2]))
    module = graph.module(result)
    lower(treadle_context(), module, CPU, after="graph", to="schedule")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    module.body.block.add_op(program(text))
    fused.schedule = SymbolRefAttr("p")
    return module


@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("name", CASES)
def test_random_nests(name: str, seed: int) -> None:
    found, counted = both(scheduled(CASES[name], seed, CPU, is_plain=True))
    assert (found.blocks, found.threads, found.share) == (counted.blocks, counted.threads, counted.share)
    # Where quotients remain in an address, both are approximations of it.
    assert cpu_seconds(found, CPU) == pytest.approx(cpu_seconds(counted, CPU), rel=0.3)


def test_neighbours_of_a_group_are_counted() -> None:
    """A shift of each of 4 x 32 elements of a block, by vectors."""
    (alone, _), (found, counted) = both(product(96, TILED)), both(product(96, TILED, shifted=True))
    assert found == counted
    added = [sum(body.executions * body.arithmetic for body in work.bodies) for work in (alone, found)]
    assert added[1] - added[0] == 4 * 32 / CPU.lanes


def test_whole_tiles_have_no_masks() -> None:
    found, counted = both(product(96, TILED))
    assert masked(found) == masked(counted) == 0


def test_tiles_that_overhang_are_masked() -> None:
    """4 rows of 2 vectors, of which the second tile of each row of blocks overhangs 40 columns: in half of the blocks
    each of 64 steps loads B through a mask for every row anew, and each vector is stored through one."""
    found, counted = both(product(40, TILED))
    assert masked(found) == masked(counted) == 0.5 * (64 * 4 * 2 + 4 * 2)


def test_parts_of_vectors_are_masked_and_in_memory() -> None:
    """4 rows of 8 columns, half a vector: each of 64 steps loads a row's sums and B, and stores the sums; before that
    these are reset, at the end they are loaded and the result is stored."""
    found, counted = both(product(96, TILED.replace("(32)", "(8)")))
    assert found == counted
    assert masked(found) == masked(counted) == 64 * 4 * 3 + 4 + 2 * 4
    inner = max(found.bodies, key=lambda body: body.executions)
    assert inner.stores == 4


def test_masks_take_the_ports_of_arithmetic() -> None:
    """Each mask as four operations on vectors, of which there are two a cycle."""
    body = Body(1e6, 8.0, 2.0)
    work = Work(1, 1, (body,), (Reuse(0.0, 0.0),), 1.0)
    cycle = 4 * CPU.lanes / CPU.peak_f32
    assert cpu_terms(work, CPU)["arithmetic"] == pytest.approx(1e6 * 4 * cycle)
    with_masks = replace(work, bodies=(replace(body, masked=2.0),))
    assert cpu_terms(with_masks, CPU)["arithmetic"] == pytest.approx(1e6 * 8 * cycle)


def test_lanes_far_apart_are_masked_one_by_one() -> None:
    assert [masked_accesses(16, stride) for stride in (1, 2, 3, -4)] == [1, 1, 16, 16]
