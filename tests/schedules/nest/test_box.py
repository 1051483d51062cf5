"""The box of a staged read holds exactly what the moving levels read, found by enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping

import pytest

from tests.schedules.nest.test_nest import program, work_of_operator
from tests.schedules.row_cases import tensor
from treadle.dialects.graph import ConvOp, MatmulOp, TransposeOp
from treadle.dialects.schedule.staging import Memory
from treadle.dialects.task import prove_cover
from treadle.schedules.nest.box import Box
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload
from treadle.target import Target

GPU = Target.parse("sm_80")
MATMUL = work_of_operator(MatmulOp(tensor(12, 10), tensor(10, 16)))
STRIDED = work_of_operator(ConvOp(tensor(1, 4, 11, 11), tensor(8, 4, 3, 3), [2, 2], [0] * 4, [1, 1], 1))
DILATED = work_of_operator(ConvOp(tensor(1, 4, 11, 11), tensor(8, 4, 3, 3), [1, 1], [0] * 4, [2, 2], 1))
GROUPED = work_of_operator(ConvOp(tensor(1, 8, 7, 7), tensor(16, 2, 3, 3), [1, 1], [1] * 4, [1, 1], 4))
TRANSPOSED = work_of_operator(TransposeOp(tensor(9, 14), [1, 0]))

TILES = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2, %i3 = schedule.split %i by (2, 3, 2)
%j0, %j1, %j2 = schedule.split %j by (4, 2)
%k0, %k1 = schedule.split %k by (4)
schedule.arrange block(%i0, %j0) repeat(%i1) thread(%i2, %j1) loop(%k0) loop(%k1) repeat(%i3, %j2)
"""
WINDOWS = """%n, %o, %h, %w, %c, %y, %x = schedule.axes 4 spatial, 3 reduction
%o0, %o1 = schedule.split %o by (4)
%h0, %h1 = schedule.split %h by (2)
%c0, %c1 = schedule.split %c by (2)
schedule.arrange block(%n, %o0, %h0) loop(%c0, %y) loop(%x, %c1) repeat(%h1, %w, %o1)
"""
FUSED = """%i, %j = schedule.axes 2 spatial, 0 reduction
%p = schedule.fuse %i, %j
%p0, %p1 = schedule.split %p by (9)
schedule.arrange block(%p0) repeat(%p1)
"""


def nest(body: str, workload: Workload) -> Nest:
    """The nest of a program without samples, for a GPU."""
    return nest_of(program(body, "cuda"), {}, workload, GPU)


def positions(nest: Nest, at: Mapping[int, int]) -> dict[int, int]:
    """Where each dimension stands when the levels have done so many iterations."""
    found: dict[int, int] = {}
    for axis in nest.axes:
        whole = sum(at[n] * level.stride for n, level in enumerate(nest.levels) if level.axis == axis)
        for n in reversed(range(len(axis.shape))):
            found[axis.first + n] = whole % axis.shape[n] if n else whole
            whole //= axis.shape[n]
    return found


def everywhere(nest: Nest, numbers: Iterable[int]) -> list[dict[int, int]]:
    """Every combination of iterations of some levels."""
    chosen = list(numbers)
    return [
        dict(zip(chosen, values, strict=True))
        for values in itertools.product(*(range(nest.levels[n].trips) for n in chosen))
    ]


@pytest.mark.parametrize(
    ("workload", "body", "memory"),
    [
        (MATMUL, TILES, "shared"),
        (MATMUL, TILES, "register"),
        (STRIDED, WINDOWS, "register"),
        (DILATED, WINDOWS, "register"),
        (GROUPED, WINDOWS, "register"),
        (TRANSPOSED, FUSED, "register"),
    ],
    ids=["matmul shared", "matmul registers", "strided", "dilated", "grouped", "fused"],
)
def test_a_box_is_what_is_read(workload: Workload, body: str, memory: Memory) -> None:
    whole, draw = nest(body, workload), random.Random(0)
    places = [len(whole.blocks), *(n + 1 for n in whole.numbers("loop"))]
    for place, number in itertools.product(places, range(len(workload.reads))):
        box = whole.box(number, place, memory)
        assert box is not None
        moving = whole.moving(place, memory)
        outer = draw.choice(everywhere(whole, (n for n in range(len(whole.levels)) if n not in moving)))
        origin = indices(whole, number, outer | dict.fromkeys(moving, 0))
        held: dict[tuple[int, ...], tuple[int, ...]] = {}
        for inner in everywhere(whole, moving):
            index = indices(whole, number, outer | inner)
            moved = [sum(box.steps[n][dim] * inner[n] for n in box.steps) for dim in range(len(box.extents))]
            assert index == tuple(o + m for o, m in zip(origin, moved, strict=True))
            held.setdefault(place_in(box, inner), index)
            assert held[place_in(box, inner)] == index, "one element a place"
        bounds = (*box.apart.values(), *box.extents)
        assert all(0 <= p < end for key in held for p, end in zip(key, bounds, strict=True))
        assert [max(key[d] for key in held) for d in range(len(bounds))] == [end - 1 for end in bounds]
        assert workload not in (MATMUL, TRANSPOSED) or len(held) == box.size, "nothing else is held"


def place_in(box: Box, at: Mapping[int, int]) -> tuple[int, ...]:
    """Where a box holds what is read when the moving levels have done so many iterations."""
    steps = [box.place_steps(n) for n in box.steps]
    counts = [at[n] for n in box.steps]
    moved = [low + sum(c * step[dim] for c, step in zip(counts, steps, strict=True)) for dim, low in enumerate(box.low)]
    return (*(at[n] for n in box.apart), *moved)


def test_a_dilated_window_holds_no_gaps() -> None:
    box = nest(WINDOWS, DILATED).box(0, 5, "register")
    assert box is not None
    assert (box.extents, box.scale) == ((1, 2, 2, 11), (1, 1, 1, 1))
    columns_apart = WINDOWS.replace("%h0)", "%h0, %w)").replace("%h1, %w,", "%h1,")
    narrow = nest(columns_apart, DILATED).box(0, 6, "register")
    assert narrow is not None
    assert (narrow.extents, narrow.scale) == ((1, 2, 2, 3), (1, 1, 1, 2))


def test_threads_do_the_tasks_of_the_mapping() -> None:
    whole = nest(TILES, MATMUL)
    assert prove_cover(whole.mapping) is None
    assert (whole.mapping.workers, whole.mapping.shape) == (whole.threads, (12, 8, 12))
    threads, inner = whole.numbers("thread"), [n for n in range(2, len(whole.levels)) if whole.roles[n] != "thread"]
    for worker, ids in enumerate(everywhere(whole, threads)):
        at = [ids | rest | dict.fromkeys((0, 1), 0) for rest in everywhere(whole, inner)]
        assert whole.mapping(worker) == [tuple(positions(whole, each).values()) for each in at]


def indices(nest: Nest, number: int, at: Mapping[int, int]) -> tuple[int, ...]:
    """What a read's indices are when the levels have done so many iterations."""
    where = positions(nest, at)
    return tuple(index.evaluate(where) for index in nest.workload.reads[number].indices)
