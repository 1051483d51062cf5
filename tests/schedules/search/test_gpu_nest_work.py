"""The work of nests for GPUs from the values alone is what is counted on their kernels."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from tests.helpers.graphs import Graph
from tests.schedules.nest.random_nests import CASES, Case, convolution, product, scheduled_by
from tests.schedules.nest.test_nest import program
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, UnaryOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.loop.count_gpu_work import count_gpu_work
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.gpu_work import OTHER_REGISTERS, GpuWork
from treadle.schedules.nest.nest import Nest
from treadle.schedules.rules.programs import programs
from treadle.schedules.rules.tiling import default_rules
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.gpu_nest_accesses import Check, Coordinate, Place
from treadle.schedules.search.gpu_nest_work import gpu_work_of
from treadle.schedules.search.group_cost import group_cost
from treadle.schedules.search.nest_accesses import Key, Loop
from treadle.schedules.search.predict import Forecast, gpu_seconds
from treadle.schedules.search.programs import taken
from treadle.schedules.search.strategy import Explored
from treadle.target import Target

A100, H100 = Target.parse("sm_80"), Target.parse("sm_90a")
NESTS = 2
"""Random nests of each group."""
EXACT = {
    "ragged product": Case(((66, 39), (39, 52)), product, epilogue=True),
    "product in few blocks": Case(((16, 1024), (1024, 12)), product),
    "product of exponentials": Case(((64, 48), (48, 80)), product, prologue=lambda x: UnaryOp("exp", x)),
    "product of halves": Case(((64, 96), (96, 64)), product, dtype=np.float16),
    "strided convolution": Case(((1, 16, 15, 15), (24, 16, 3, 3)), convolution(2, 2, 1), epilogue=True),
    "grouped convolution": CASES["grouped convolution"],
    "max pooling": CASES["max pooling"],
    "elementwise": Case(((48, 130), (130,)), CASES["elementwise"].operator),
    "sum of rows": CASES["sum of rows"],
}
"""Groups with what is counted exactly."""


def task_of(case: Case, target: Target) -> Task:
    """The nests that the default rules write for a case's last group."""
    module = case.module()
    lower(treadle_context(), module, target, after="graph", to="fuse")
    anchor = anchor_of([op for op in module.walk() if isinstance(op, FusedOp)][-1])
    found = (each for each in programs(anchor, target, default_rules(target)) if each.template is None)
    return Task(anchor, target, tuple(found))


def counted_nests(task: Task, seed: str) -> Iterator[tuple[Candidate, GpuWork]]:
    """Random candidates whose work is counted on the value."""
    explored, draw, cost = Explored(task), random.Random(seed), group_cost(task.anchor)
    for candidate in explored.draws(draw, list(task.by_name)):
        nest = task.replay(candidate)
        assert isinstance(nest, Nest)
        if nest.thread_fold is None:
            yield candidate, gpu_work_of(nest, cost)


def on_kernel(case: Case, task: Task, candidate: Candidate) -> GpuWork:
    """The work counted on the lowered kernel of a candidate."""
    target, scheme = task.target, task.by_name[candidate.program]
    module = scheduled_by(case, target, lambda _: taken(scheme, candidate.decisions))
    lower(treadle_context(), module, target, after="schedule", to="loops")
    return count_gpu_work([op for op in module.walk() if isinstance(op, FuncOp)][-1])


@pytest.mark.parametrize("name", EXACT)
def test_random_nests(name: str) -> None:
    case, target = EXACT[name], A100 if len(name) % 2 else H100
    task = task_of(case, target)
    for candidate, found in itertools.islice(counted_nests(task, name), NESTS):
        counted = on_kernel(case, task, candidate)
        assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(counted)), candidate


def test_quotients_of_sums_are_approximated() -> None:
    """Indices that are no sums of digits of the axes: taps of a transposed convolution."""
    case = CASES["transposed convolution"]
    task = task_of(case, A100)
    for candidate, found in itertools.islice(counted_nests(task, "0"), NESTS):
        assert gpu_seconds(found, A100) == pytest.approx(gpu_seconds(on_kernel(case, task, candidate), A100), rel=0.35)


STAGED = """%i, %j, %k = schedule.axes 2 spatial, 1 reduction
%i0, %i1, %i2 = schedule.split %i by (8, 4)
%j0, %j1, %j2 = schedule.split %j by (16, 4)
%k0, %k1 = schedule.split %k by (8)
schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2)
"""


def staged(*lines: str) -> Task:
    """A product of 64 x 64 x 256 whose tiles of 32 x 64 by 4 warps are copied to faster memory in steps of 8."""
    graph = Graph(np.zeros((64, 256), np.float32), np.zeros((256, 64), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, A100, after="graph", to="fuse")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    return Task(anchor_of(fused), A100, (program("\n".join([STAGED, *lines]), "cuda"),))


def work(task: Task) -> GpuWork:
    """The work of a task's only nest."""
    nest = task.replay(Candidate("p", {}))
    assert isinstance(nest, Nest)
    return gpu_work_of(nest, group_cost(task.anchor))


def test_a_staged_product_is_counted_as_by_hand() -> None:
    task = staged(*(f'schedule.stage {n} at %k0 in "shared" vector 4 buffers 2' for n in (0, 1)))
    found = work(task)
    assert (found.blocks, found.threads, found.operations, found.bytes) == (
        2,
        128,
        32 * 64 * 256,
        4 * 64 * (2 * 256 + 64),
    )
    # 32 steps take 32 rows of A of one sector and 8 rows of B of 8; 32 rows of C have 8.
    assert found.sectors == 32 * (32 + 8 * 8) + 32 * 8
    # For each of 256 terms, a warp loads 4 rows, each 4 times, of 2 addresses, and 4 columns of 16 threads at once.
    assert found.shared_loads == 256 * 4 * (4 * 1 + 4)
    assert found.shared_bytes == 2 * 8 * (32 + 4 + 64) * 4
    assert (found.steps, found.ahead, found.round_trips, found.barriers) == (31, 1, 1, 32)
    # 16 sums, 4 elements of each matrix fetched ahead, and a vector of 4 columns.
    assert found.registers == 16 + 4 + 4 + 4 + OTHER_REGISTERS
    assert Forecast(task).seconds(Candidate("p", {})) == gpu_seconds(found, A100)


def test_stages_in_registers_are_not_counted() -> None:
    with pytest.raises(TreadleError, match="such a stage is counted on kernels only"):
        work(staged('schedule.stage 0 at %k0 in "register"'))


def test_reductions_among_threads_are_not_counted() -> None:
    task = staged()
    shared = STAGED.replace("thread(%i1, %j1) loop(%k0) loop(%k1)", "thread(%i1, %j1, %k0) loop(%k1)")
    task = Task(task.anchor, A100, (program(shared.replace("by (8)", "by (128)"), "cuda"),))
    with pytest.raises(TreadleError, match="reductions among threads are counted on kernels only"):
        work(task)


STEPS = strategies.sampled_from([0, 1, 2, 4, 8])
DIGITS = strategies.lists(strategies.tuples(strategies.sampled_from([2.0, 4.0, 8.0]), STEPS), max_size=2)


@strategies.composite
def places(draw: strategies.DrawFn) -> tuple[Place, Loop]:
    """A place of two axes, which three levels cover, and a loop over one of the levels."""
    trips: dict[Key, int] = {("level", n): draw(strategies.sampled_from([2, 4, 6])) for n in range(3)}
    steps: list[dict[Key, int]] = [{}, {}]
    reached = [1, 1]
    for key in draw(strategies.permutations(list(trips))):
        axis = draw(strategies.integers(0, 1))
        steps[axis][key] = reached[axis]
        reached[axis] *= trips[key]
    coordinates = [Coordinate((*draw(DIGITS), (64.0, draw(STEPS))), 0, each) for each in steps]
    return Place(draw(STEPS), tuple(coordinates), trips), Loop(("level", 0), trips["level", 0], 1)


@settings(max_examples=50)
@given(places(), strategies.sampled_from([2, 4]))
def test_runs_are_consecutive_and_aligned_wherever_other_variables_stand(found: tuple[Place, Loop], lanes: int) -> None:
    place, loop = found
    if loop.trips % lanes or not place.is_run(loop, lanes, 1):
        return
    for others in itertools.product(*(range(place.trips["level", n]) for n in (1, 2))):
        at = [place.at({loop.key: n, ("level", 1): others[0], ("level", 2): others[1]}) for n in range(loop.trips)]
        for first in range(0, loop.trips, lanes):
            assert at[first] % lanes == 0
            assert at[first : first + lanes] == list(range(at[first], at[first] + lanes))


@settings(max_examples=50)
@given(places(), strategies.sampled_from(["slt", "sle", "sge", "sgt"]), strategies.sampled_from([2, 4]))
def test_checks_agree_on_lanes(found: tuple[Place, Loop], kind: str, lanes: int) -> None:
    place, loop = found
    check = Check(kind, dataclasses.replace(place, start=place.start - 12))
    holds = {"slt": int.__lt__, "sle": int.__le__, "sge": int.__ge__, "sgt": int.__gt__}[kind]
    lo, hi = check.place.bounds()
    every = itertools.product(*(range(each) for each in place.trips.values()))
    values = {at: int(check.place.at(dict(zip(place.trips, at, strict=True)))) for at in every}
    assert lo <= min(values.values())
    assert max(values.values()) <= hi
    assert not check.is_true or all(holds(value, 0) for value in values.values())
    if loop.trips % lanes == 0 and check.agrees(loop, lanes):
        groups = {(at[0] // lanes, *at[1:]): set[bool]() for at in values}
        for at, value in values.items():
            groups[at[0] // lanes, *at[1:]].add(holds(value, 0))
        assert all(len(group) == 1 for group in groups.values())
