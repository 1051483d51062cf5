"""Nests as values: trips and strides of levels, and what cannot be replayed."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.parser import Parser

from tests.helpers.graphs import Graph
from tests.schedules.row_cases import tensor
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, Operator, SoftmaxOp, UnaryOp, definition
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, ProgramOp
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_instantiate import instantiate
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.target import Target

DENSE = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%r = schedule.sample "rows" from [4, 6]
%a, %b = schedule.sample_tile "columns" 2 from [1, 2, 16] product 16 to 32
%i0, %i1 = schedule.split %i by (%r)
%j0, %j1, %j2 = schedule.split %j by (%a, %b)
%k0, %k1 = schedule.split %k by (8)
schedule.arrange block(%i0, %j0) repeat(%j1) loop(%k0) loop(%k1) repeat(%i1, %j2)
schedule.mark vector %j2
schedule.mark unroll %k1
"""
TAKEN: dict[str, Choice] = {"rows": 6, "columns": (2, 16)}


CPU = Target.parse("cpu")


def work_of_operator(op: Operator) -> Workload:
    """Of an operator whose operands belong to no program."""
    return workload_of(definition(op))


DENSE_WORK = work_of_operator(MatmulOp(tensor(20, 30), tensor(30, 64)))


def program(body: str, kind: str = "cpu") -> ProgramOp:
    module = Parser(treadle_context(), f'schedule.program @p for "{kind}" {{\n{body}\n}}').parse_module()
    module.verify()
    (op,) = module.body.block.ops
    assert isinstance(op, ProgramOp)
    op.detach()
    return op


def test_levels_have_trips_and_strides() -> None:
    nest = nest_of(program(DENSE), TAKEN, DENSE_WORK, CPU)
    shown = [(group.role, [(level.trips, level.stride) for level in group.levels]) for group in nest.groups]
    assert shown == [
        ("block", [(4, 6), (2, 32)]),
        ("repeat", [(2, 16)]),
        ("loop", [(4, 8)]),
        ("loop", [(8, 1)]),
        ("repeat", [(6, 1), (16, 1)]),
    ]
    tile = [nest.levels[n] for n in nest.tile]
    assert [level.trips for level in tile] == [6, 16]
    assert nest.accumulators == 96
    assert nest.grid == 8
    assert [nest.below(place) for place in (0, 2, 3, 7)] == [(24, 64, 32), (6, 32, 32), (6, 16, 32), (1, 1, 1)]
    i, j = (level.axis for level in nest.blocks)
    assert (nest.overhangs(i), nest.overhangs(j)) == (True, False)
    assert [level.vector for level in tile] == [False, True]
    assert nest.groups[3].levels[0].unroll


LOOPS = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1 = schedule.split %i by (2)
%j0, %j1 = schedule.split %j by (16)
%k0, %k1, %k2 = schedule.split %k by (3, 4)
schedule.arrange block(%i0, %j0) loop(%k0) loop(%k1) loop(%k2) repeat(%i1, %j1)
"""
"""Loops of 3, 3 and 4 iterations around 32 terms."""


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, ()), (3, ()), (4, (4,)), (11, (4,)), (12, (4, 3)), (16, (4, 3)), (36, (4, 3, 3))]
)
def test_loops_are_unrolled_from_the_innermost_up_to_a_limit(limit: int, expected: tuple[int, ...]) -> None:
    nest = nest_of(program(LOOPS + f"schedule.unroll {limit}"), {}, DENSE_WORK, CPU)
    assert tuple(level.trips for level in reversed(nest.levels) if level.unroll) == expected
    assert nest.unrolled_terms == 32 * prod(expected)


def test_the_limit_of_unrolling_is_sampled() -> None:
    body = LOOPS + '%u = schedule.sample "unroll" from [0, 16, 64, 512]\nschedule.unroll %u'
    nests = [nest_of(program(body), {"unroll": limit}, DENSE_WORK, CPU) for limit in (0, 16, 64, 512)]
    assert [sum(level.unroll for level in nest.levels) for nest in nests] == [0, 2, 3, 3]
    assert nests[2] == nests[3], "one kernel, of which a search measures one"


def test_what_unrolling_leaves_alone() -> None:
    """Loops of which compilers would see too many terms, those that fill stages ahead, and of vectors."""
    large = LOOPS.replace("(16)", "(64)").replace("(2)", "(10)")
    nest = nest_of(program(large + "schedule.unroll 512"), {}, DENSE_WORK, CPU)
    assert (nest.accumulators, nest.unrolled_terms) == (640, 640 * 4 * 3), "36 would be 23040"
    ahead = LOOPS.replace("block(%i0, %j0)", "block(%i0, %j0) thread(%i1)").replace("repeat(%i1, %j1)", "repeat(%j1)")
    ahead += 'schedule.stage 0 at %k1 in "shared" buffers 2\nschedule.unroll 512'
    nest = nest_of(program(ahead, "cuda"), {}, DENSE_WORK, Target.parse("sm_80"))
    assert [level.trips for level in nest.levels if level.unroll] == [4]
    lanes = (
        "schedule.arrange block(%i0, %j0) repeat(%i1, %j1) loop(%k0) loop(%k1) loop(%k2)\nschedule.mark vector %k2\n"
    )
    body = LOOPS[: LOOPS.index("schedule.arrange")] + lanes
    assert not any(level.unroll for level in nest_of(program(body + "schedule.unroll 64"), {}, DENSE_WORK, CPU).levels)


def test_fused_axes_are_one() -> None:
    body = "%h, %w, %c = schedule.axes 3 spatial, 0 reduction\n%p = schedule.fuse %h, %w\n"
    pointwise = work_of_operator(UnaryOp("relu", tensor(5, 7, 3)))
    nest = nest_of(program(body + "schedule.arrange block(%p) repeat(%c)"), {}, pointwise, CPU)
    assert (nest.blocks[0].axis.first, nest.blocks[0].axis.shape, nest.blocks[0].trips) == (0, (5, 7), 35)


@pytest.mark.parametrize(
    ("body", "decisions", "says"),
    [
        (DENSE, {"rows": 6}, "sample 'columns' is open"),
        (DENSE, {**TAKEN, "rows": 5}, "sample 'rows' takes 5; accepted: 4, 6"),
        (DENSE, {**TAKEN, "columns": (2, 2)}, "sample 'columns' takes (2, 2)"),
        (DENSE, {**TAKEN, "columns": 16}, "sample 'columns' takes 16"),
        (
            "%i, %k = schedule.axes 1 spatial, 1 reduction\nschedule.arrange block(%i) loop(%k)",
            {},
            "it has 1 spatial and 1 reduction axes; accepted: 2 spatial, 1 reduction",
        ),
        (
            "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\nschedule.arrange loop(%k) repeat(%i, %j)",
            {},
            "it takes 1280 accumulators, 256 too many; accepted: at most 1024",
        ),
        (
            "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\n%i0, %i1 = schedule.split %i by (10)\n"
            "schedule.arrange block(%i0) loop(%k) repeat(%i1, %j)\nschedule.mark unroll %k",
            {},
            "it takes 19200 unrolled terms, 11008 too many; accepted: at most 8192",
        ),
        (
            "%i, %j, %k = schedule.axes 2 spatial, 1 reduction\nschedule.arrange block(%i, %k) repeat(%j)",
            {},
            "a reduction level is in block, and blocks of a CPU share no sums; accepted: loop",
        ),
        ('schedule.template "matmul_cpu" {}', {}, "schedule.template is no instruction of a nest"),
    ],
)
def test_what_cannot_be_replayed(body: str, decisions: dict[str, Choice], says: str) -> None:
    with pytest.raises(TreadleError) as caught:
        nest_of(program(body), decisions, DENSE_WORK, CPU)
    assert says in str(caught.value)
    assert "schedule program @p" in str(caught.value)


def group(module: ModuleOp) -> FusedOp:
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return fused


def relu(rows: int = 4) -> ModuleOp:
    graph = Graph(np.zeros((rows, 8), np.float32))
    module = graph.module(graph.add(UnaryOp("relu", graph[0])))
    lower(treadle_context(), module, Target.parse("cpu"), after="graph", to="fuse")
    return module


@pytest.mark.parametrize(
    ("kind", "target", "symbol", "says"),
    [
        ("cuda", "cpu", "p", "it is a nest for cuda targets, and the target is cpu; accepted: a nest for cpu targets"),
        ("cpu", "sm_80", "p", "it is a nest for cpu targets, and the target is sm_80; accepted: a nest for cuda"),
        ("cpu", "cpu", "q", "there is no schedule program @q; accepted: @p"),
    ],
)
def test_what_a_group_cannot_name(kind: str, target: str, symbol: str, says: str) -> None:
    fused = group(relu())
    fused.schedule = SymbolRefAttr(symbol)
    body = "%i, %j = schedule.axes 2 spatial, 0 reduction\nschedule.arrange block(%i) repeat(%j)"
    with pytest.raises(TreadleError) as caught:
        instantiate(fused, Target.parse(target), {"p": program(body, kind)})
    assert says in str(caught.value)


def test_several_reductions_have_no_nest() -> None:
    graph = Graph(np.zeros((4, 8), np.float32))
    module = graph.module(graph.add(SoftmaxOp(graph[0], 1)))
    lower(treadle_context(), module, Target.parse("cpu"), after="graph", to="fuse")
    with pytest.raises(TreadleError, match="has several reductions; accepted: a definition with at most one"):
        workload_of(anchor_of(group(module)))
