"""The work of a nest on a GPU, from the value alone: what `count_gpu_work` finds in its kernel, without the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from treadle.dialects.loop.tiles import WARP
from treadle.errors import TreadleError
from treadle.schedules.access_analysis import Digits
from treadle.schedules.gpu_work import OTHER_REGISTERS, SECTOR_BYTES, GpuWork, Traffic, tensor_bytes
from treadle.schedules.nest.nest import Axis, Level, Nest, Stage
from treadle.schedules.search.gpu_nest_accesses import (
    WHOLE,
    Check,
    Coordinate,
    Copy,
    GpuAccess,
    Place,
    SharedStage,
    Straight,
    Values,
    straight,
    vectorised,
)
from treadle.schedules.search.group_cost import GroupCost, Touched, along
from treadle.schedules.search.nest_accesses import Branch, Inside, Key, Loop, nested, pieces
from treadle.schedules.search.nest_work import is_masked, unroll

# The loops and the straight code of a nest's finished kernel for a GPU, from the value alone.
#
# They are those that the builder of nests writes and the loop passes leave: single trips are gone, levels are split at
# the digits of the addresses that they move, accesses of short loops are combined, short loops are unrolled.

_SUM_BYTES = 16
"""Of a vector of partial sums."""
_Fixed: TypeAlias = Mapping[int, int]
"""Levels that stand at more than their iteration: by how much."""
_Held: TypeAlias = Mapping[int, int]
"""The reads that are staged where code stands, and which of the stage's buffers is read."""
_Body: TypeAlias = Callable[[_Fixed, _Held], list[Inside]]


class GpuLoops:
    """What each block does, as `code`."""

    def __init__(self, nest: Nest, cost: GroupCost):
        self._nest, self._cost = nest, cost
        self._threads = threads_of(nest)
        self._stages = {stage: SharedStage(nest, stage, cost, self._threads) for stage in nest.stages}
        self._staged = {id(each): s.stage.read for s in self._stages.values() for each in s.operand.step.reads}
        self._read_of = {id(t): n for n, operand in cost.operands.items() for t in operand.step.reads}
        self._trips: dict[Key, int] = {("level", n): lv.trips for n, lv in enumerate(nest.levels) if lv.trips > 1}
        # How far an iteration of each level moves along each axis.
        self._strides: dict[Axis, dict[Key, int]] = {axis: {} for axis in nest.axes}
        for n, level in enumerate(nest.levels):
            if level.trips > 1:
                self._strides[level.axis]["level", n] = level.stride
        self._not_reached: dict[Axis, int] = {}
        self._masked = {axis for axis in nest.axes if nest.overhangs(axis) and nest.masks(axis)}
        self._clamped = {axis for axis in nest.axes if nest.overhangs(axis)} - self._masked
        self.code = vectorised(self._block())
        unroll(self.code)

    def _block(self) -> list[Inside]:
        nest, term = self._nest, self._cost.term
        if term is None:
            reads = self._cost.element.reads
            return nested(self._levels(nest.numbers("repeat"), [*reads, self._cost.result]), [self._store()])
        stages = self._stages_at(len(nest.blocks))
        held = {stage.read: 0 for stage in stages}
        inner = [n for n in range(nest.first_loop, len(nest.levels)) if nest.roles[n] in ("loop", "repeat")]
        body = self._fold([n for n in inner if n not in nest.virtual], {}, held)
        store = nested(
            self._levels(nest.tile, [*self._cost.element.reads, self._cost.result], unrolled=True), [self._store()]
        )
        whole = [*body, *shared_sums(nest, self._cost.accumulator_bytes, store)]
        return [*self._filled(stages, {}), *nested(self._levels(self._outer, self._terms()), whole)]

    @property
    def _outer(self) -> list[int]:
        """The repeated levels outside of the reduction."""
        return [n for n in self._nest.numbers("repeat") if n not in self._nest.tile]

    @property
    def fetched_registers(self) -> tuple[int, int]:
        """Registers of a thread that hold what it fetches: all of them, and those that are live while it computes."""
        found = [
            (each.registers, self._nest.levels[stage.compute_at - 1].trips) for stage, each in self._stages.items()
        ]
        return sum(size for size, _ in found), sum(size for size, trips in found if trips > 1)

    def _stages_at(self, place: int) -> list[Stage]:
        return [stage for stage in self._nest.stages if stage.compute_at == place]

    def _filled(self, stages: Sequence[Stage], fixed: _Fixed) -> list[Inside]:
        if not stages:
            return []
        return [*self._copies(stages, "fill", fixed), Straight(is_barrier=True)]

    def _copies(self, stages: Sequence[Stage], kind: Copy, fixed: _Fixed, half: int = 0) -> list[Inside]:
        return [each for stage in stages for each in self._stages[stage].copies(kind, fixed, half)]

    def _fold(self, numbers: Sequence[int], fixed: _Fixed, held: _Held) -> list[Inside]:
        """Adds the terms to the accumulators."""
        nest = self._nest
        if not any(nest.roles[n] == "loop" for n in numbers):
            inner = [*nest.virtual, *numbers]
            tensors = [each for each in self._terms() if self._staged.get(id(each)) not in held]
            return nested(self._levels(inner, tensors, unrolled=True), [self._term(fixed, held)])
        number, rest = numbers[0], numbers[1:]
        if nest.roles[number] == "loop":
            return self._pipeline(number, fixed, held, lambda f, h: self._fold(rest, f, h))
        return nested(self._levels([number], self._direct()), self._fold(rest, fixed, held))

    def _terms(self) -> Sequence[Touched]:
        return () if self._cost.term is None else self._cost.term.reads

    def _direct(self) -> list[Touched]:
        """What terms read without a stage."""
        return [each for each in self._terms() if id(each) not in self._staged]

    def _pipeline(self, number: int, fixed: _Fixed, held: _Held, body: _Body) -> list[Inside]:
        """One loop of the reduction, with its stages filled for each iteration."""
        stages, level = self._stages_at(number + 1), self._nest.levels[number]
        trips = level.trips
        inside = {**held, **{stage.read: 0 for stage in stages}}
        if not stages or stages[0].buffers == 1:
            before: list[Inside] = [Straight(is_barrier=True)] if stages else []
            code = [*before, *self._filled(stages, fixed), *body(fixed, inside)]
            return nested(self._levels([number], [] if stages else self._direct()), code)
        buffers = stages[0].buffers
        barriers: list[Inside] = [Straight(is_barrier=True)] if self._is_inside_loops(number) else []
        if stages[0].is_async:
            ahead = buffers - 1
            code: list[Inside] = [Straight(pending=ahead - 1), Straight(is_barrier=True)]
            if trips > ahead:
                copies = self._copies(stages, "start", {**fixed, number: ahead}, 0)
                code.append(Branch((trips - ahead) / trips, copies))
            first = _looped(number, min(ahead, trips), level.stride, self._copies(stages, "start", fixed))
            return [*barriers, *first, *_looped(number, trips, level.stride, [*code, *body(fixed, inside)])]
        before_last = self._before_last(level, lambda: body(fixed, inside))
        step: list[Inside] = [
            *self._copies(stages, "fetch", {**fixed, number: 1}), *before_last,
            *self._copies(stages, "keep", fixed, 1), Straight(is_barrier=True),
        ]  # fmt: skip
        begin = [*self._copies(stages, "fetch", fixed), *barriers, *self._copies(stages, "keep", fixed)]
        half = (trips - 1) % buffers
        last = body({**fixed, number: trips - 1}, {**inside, **{stage.read: half for stage in stages}})
        loop = _looped(number, trips - 1, level.stride, step) if trips > 1 else []
        return [*begin, Straight(is_barrier=True), *loop, *last]

    def _before_last(self, level: Level, body: Callable[[], list[Inside]]) -> list[Inside]:
        """What is done in all iterations of a level but the last one."""
        before = self._not_reached
        self._not_reached = {**before, level.axis: before.get(level.axis, 0) + level.stride}
        found = body()
        self._not_reached = before
        return found

    def _is_inside_loops(self, number: int) -> bool:
        """Whether a level stands in another loop."""
        nest = self._nest
        outer = {*self._outer, *(n for n in nest.numbers("loop") if n < number)}
        outer |= {n for n in nest.tile if nest.first_loop < n < number}
        return any(nest.levels[n].trips > 1 for n in outer)

    def _term(self, fixed: _Fixed, held: _Held) -> Straight:
        """One term for one accumulator."""
        cost = self._cost
        assert cost.term is not None
        stages = [self._stages[stage] for stage in self._nest.stages if stage.read in held]
        staged = sum(each.operand.step.arithmetic for each in stages)
        direct = [each for each in cost.term.reads if self._staged.get(id(each)) not in held]
        loads = [self._access(each, fixed, self._read_axes(each)) for each in direct]
        masked = is_masked(self._nest, {stage.read for stage in self._nest.stages}, self._not_reached)
        selects = cost.fold if masked else -1.0 if cost.fuses else 0.0
        arithmetic = cost.term.arithmetic - staged + cost.fold + selects + self._selects(direct)
        loads += [each.held(held[each.stage.read]) for each in stages]
        return Straight(arithmetic, touches=loads, uses=bool(direct))

    def _selects(self, reads: Sequence[Touched]) -> float:
        """Selections between what is computed in place of a read and what it gives where its predicate is false."""
        numbers = {self._read_of[id(each)]: each for each in reads if id(each) in self._read_of}
        workload, operands = self._nest.workload, self._cost.operands
        predicated = [n for n, each in numbers.items() if workload.reads[n].conditions or self._read_axes(each)]
        return float(sum(operands[n].step.arithmetic > 0 for n in predicated))

    def _store(self) -> Straight:
        """What follows the reduction, at one accumulator; without one, one element."""
        cost, axes = self._cost, self._nest.axes
        masked = [axis for axis in axes if not axis.is_reduction and self._nest.overhangs(axis)]
        reads = cost.element.reads
        loads = [self._access(each, {}, self._read_axes(each, masked)) for each in reads]
        arithmetic = cost.element.arithmetic + self._selects(reads)
        stored = self._access(cost.result, {}, masked, is_store=True)
        is_alone = not arithmetic and len(loads) + (cost.term is not None) == 1
        copies = "" if not is_alone else "memory" if loads else "registers"
        after = cost.term is not None
        return Straight(arithmetic, touches=[*loads, stored], uses=bool(loads), copies=copies, after=after)

    def _read_axes(self, touched: Touched, others: Sequence[Axis] = ()) -> list[Axis]:
        """The axes along which a read is masked: those along whose vectors and threads tiles overhang, and all where it
        has a predicate; `others` for what operators behind the anchor read."""
        nest, number = self._nest, self._read_of.get(id(touched))
        if number is None:
            return list(others)
        read = nest.workload.reads[number]
        found: list[Axis] = []
        for axis in nest.axes:
            if read.dims & axis.dimensions and (axis in self._masked or (read.is_predicated and axis in self._clamped)):
                found.append(axis)
        return found

    def _access(self, touched: Touched, fixed: _Fixed, masked: Sequence[Axis], *, is_store: bool = False) -> GpuAccess:
        """An access to global memory where the levels stand."""
        cost = self._cost
        digits = [cost.along(touched, axis) for axis in self._nest.axes]
        number = self._read_of.get(id(touched))
        is_clamped = number is not None and not self._nest.workload.reads[number].is_predicated
        about = frozenset(key for key in self._trips if touched.about & self._nest.levels[key[1]].axis.dimensions)
        place = self._place(touched.start, digits, fixed, is_clamped=is_clamped, about=about)
        checks = [
            Check(each.kind, self._place(each.start, [along(each.digits, axis) for axis in self._nest.axes], fixed))
            for each in touched.guards
        ]
        for axis in masked:
            own: list[Digits] = [WHOLE if each == axis else () for each in self._nest.axes]
            checks.append(Check("slt", self._place(-axis.extent, own, fixed)))
        known = tuple(each for each in checks if not each.is_true)
        return GpuAccess(place, touched.bytes, is_store, False, self._threads, known, touched.is_data)

    def _place(
        self,
        start: int,
        digits: Sequence[Digits],
        fixed: _Fixed,
        *,
        is_clamped: bool = False,
        about: frozenset[Key] = frozenset(),
    ) -> Place:
        found: list[Coordinate] = []
        for (axis, strides), each in zip(self._strides.items(), digits, strict=True):
            if not any(step for _, step in each):
                continue
            base = sum(count * strides.get(("level", n), 0) for n, count in fixed.items())
            found.append(Coordinate(each, base, strides, is_clamped and axis in self._clamped))
        return Place(start, tuple(found), self._trips, about)

    def _levels(self, numbers: Sequence[int], split: Sequence[Touched], *, unrolled: bool = False) -> list[Loop]:
        """The loops over some levels, split at the digits of some tensors."""
        found: list[Loop] = []
        for n in numbers:
            level = self._nest.levels[n]
            digits = [] if level.vector else [self._cost.along(each, level.axis) for each in split]
            for loop in pieces(("level", n), level.trips, level.stride, digits):
                loop.is_written = unrolled or level.unroll
                loop.indexes = self._cost.term is not None and n in self._nest.tile
                found += [loop] if loop.trips > 1 else []
        return found


def _looped(number: int, trips: int, stride: int, inside: Sequence[Inside]) -> list[Inside]:
    """A loop of a pipeline, unless it has one iteration."""
    return nested([Loop(("level", number), trips, stride)] if trips > 1 else [], inside)


def shared_sums(nest: Nest, size: int, store: list[Inside]) -> list[Inside]:
    """What blocks that share elements do in front of the `store` that only the last one comes to: each stores its sums,
    of `size` bytes, and counts itself; the last one adds up those of all."""
    slices = prod(nest.levels[n].trips for n in nest.slices)
    if slices == 1:
        return store
    shape = [nest.levels[n].trips for n in nest.tile if nest.levels[n].trips > 1]
    lanes = gcd(_SUM_BYTES // size, nest.accumulators)
    row = gcd(lanes, shape[-1] if shape else 1)
    # Of two rows of accumulators, no vector is stored at once.
    together = row if row > 1 else lanes
    vectors, registers = nest.accumulators // lanes, lanes * size // 4 if lanes > 1 else 0
    thread: dict[Key, object] = {("thread", 0): np.arange(nest.threads)}
    step = Coordinate(WHOLE, 0, {("thread", 0): lanes * size})
    load = GpuAccess(Place(0, (step,), {}), size, False, False, thread, lanes=lanes)
    stored = replace(load, is_store=True, lanes=together)
    counted = GpuAccess(Place(0, (), {}), 4, True, False, thread)
    keep = Straight(touches=[stored], registers=registers if together != row else 0, after=True)
    added = Loop(("element", 1), lanes, 0, is_written=True, inside=[Straight(1.0)])
    part: list[Inside] = [Straight(touches=[load], uses=True, registers=registers, after=True)]
    part += [added] if lanes > 1 else added.inside
    total = Loop(("slice", 0), slices, 0, inside=nested(_repeated(vectors), part))
    kept = nested(_repeated(nest.accumulators // together), [keep])
    return [*kept, Straight(touches=[counted]), Branch(1 / slices, [total, *store])]


def _repeated(count: int) -> list[Loop]:
    """An unrolled loop over places in memory."""
    return [Loop(("copy", 1), count, 0, is_written=True)] if count > 1 else []


def threads_of(nest: Nest) -> Values:
    """The iterations of levels that each thread of a block stands at."""
    number, found, inner = np.arange(nest.threads), dict[Key, object](), 1
    for n in reversed(nest.numbers("thread")):
        trips = nest.levels[n].trips
        if trips > 1:
            found["level", n] = number // inner % trips
        inner *= trips
    return found


def gpu_work_of(nest: Nest, cost: GroupCost) -> GpuWork:
    """The work of a nest's kernel on a GPU. TreadleError for a nest whose threads share elements, or with stages in
    registers or of what no reduction reads.

    Addresses that are no sums of digits of the axes (taps of a transposed convolution) are approximated. Of 368 random
    nests of the default rules on sm_80, for products, convolutions, pooling, reductions and elementwise operators, all
    had the work that is counted on their kernels; 14 of transposed convolutions had predicted times of 0.98 to 1.81
    times those from the kernels.
    """
    if nest.thread_fold is not None:
        accepted = "threads of spatial axes"
        raise TreadleError("reductions among threads are counted on kernels only", "work of a nest", accepted)
    loops, counter = GpuLoops(nest, cost), _Counter(nest)
    counter.region(loops.code, 1.0)
    return counter.work(nest, loops, cost)


def _bytes(nest: Nest, cost: GroupCost) -> int:
    """Of the tensors, and of the sums and counters of blocks that share elements."""
    reads = [*(cost.term.reads if cost.term is not None else ()), *cost.element.reads, cost.result]
    tensors = {each.buffer for each in reads}
    found = sum(tensor_bytes(each) for each in tensors if isinstance(each, SSAValue))
    slices = prod(nest.levels[n].trips for n in nest.slices)
    if slices == 1:
        return found
    tiles = nest.grid // slices * prod(nest.levels[n].trips for n in nest.numbers("repeat") if n not in nest.tile)
    return found + tiles * (slices * nest.accumulators * nest.threads * cost.accumulator_bytes + 4)


class _Counter:
    """Counts code as `count_gpu_work` counts a kernel; `times` are executions by one thread."""

    def __init__(self, nest: Nest):
        self._traffic = Traffic(nest.threads)
        self._blocks: tuple[Key, ...] = tuple(("level", n) for n in nest.numbers("block"))
        self._loops: list[Loop] = []
        self._operations = self._steps = self._round_trips = self._barriers = 0.0
        self._ahead = self._inner_registers = self._store_registers = 0

    def work(self, nest: Nest, loops: GpuLoops, cost: GroupCost) -> GpuWork:
        """The counts."""
        traffic, threads = self._traffic, nest.threads
        return GpuWork(
            blocks=nest.grid,
            threads=threads,
            registers=self._registers(nest, loops, cost) + OTHER_REGISTERS,
            min_blocks=nest.min_blocks_per_sm or 1,
            shared_bytes=nest.staged_bytes("shared") + nest.scratch_bytes,
            operations=self._operations * threads,
            tensor_flops=0.0,
            tensor_bytes=0,
            sectors=traffic.sectors,
            shared_loads=traffic.shared_loads,
            shared_stores=traffic.shared_stores,
            accesses=traffic.accesses,
            steps=self._steps,
            ahead=self._ahead,
            round_trips=self._round_trips,
            barriers=self._barriers,
            bytes=_bytes(nest, cost),
        )

    def _registers(self, nest: Nest, loops: GpuLoops, cost: GroupCost) -> int:
        """Registers of a thread's arrays where most of them are live at once."""
        if cost.term is None:
            return self._inner_registers
        words = -(-cost.accumulator_bytes * nest.accumulators // 4)
        fetched, live = loops.fetched_registers
        return words + max(fetched, live + self._inner_registers, self._store_registers)

    def region(self, inside: Sequence[Inside], times: float) -> None:
        """Straight code: a loop's body that is not unrolled, or what is outside of such loops."""
        code = list(_in_order(inside))
        parts = [each for each in code if isinstance(each, Straight)]
        waits = [each.pending for each in parts if each.pending is not None]
        loads = [touch for each in parts for touch in each.touches if touch.is_loaded]
        if waits and any(touch.is_async for touch in loads):
            self._loads_ahead(times, min(waits) + 1)
        if any(not touch.is_async for touch in loads):
            if _waits_at_once(code):
                self._round_trips += times
            else:
                self._loads_ahead(times, 1)
        self._inside(inside, times)

    def _loads_ahead(self, times: float, ahead: int) -> None:
        if times >= self._steps:
            self._steps, self._ahead = times, ahead

    def _inside(self, inside: Sequence[Inside], times: float) -> None:
        for each in inside:
            if isinstance(each, Branch):
                self._inside(each.inside, times * each.part)
            elif isinstance(each, Loop):
                self._loops.append(each)
                count = self._inside if each.is_unrolled else self.region
                count(each.inside, times * each.trips)
                self._loops.pop()
            elif isinstance(each, Straight):
                self._code(each, times)

    def _code(self, code: Straight, times: float) -> None:
        self._operations += code.arithmetic * times
        self._barriers += times if code.is_barrier else 0.0
        if code.after:
            self._store_registers = max(self._store_registers, code.registers)
        else:
            self._inner_registers = max(self._inner_registers, code.registers)
        for access in code.touches:
            self._access(access, times * self._invariance(access))

    def _access(self, access: GpuAccess, times: float) -> None:
        width, traffic = access.element * access.lanes, self._traffic
        for first in access.starts:
            values = access.threads
            if access.along is not None:
                values = {**values, access.along.key: first * access.along.every}
            each = times * access.likely(first, self._blocks)
            if access.is_data:
                traffic.sectors += each * traffic.warps * WARP * max(1, width // SECTOR_BYTES)
                traffic.accesses += each * traffic.warps
                continue
            add = traffic.store if access.is_store else traffic.load
            add = add if access.is_shared else traffic.reach
            at = access.place.at(values)
            add(at if isinstance(at, np.ndarray) else np.full(traffic.threads, at), width, each)

    def _invariance(self, access: GpuAccess) -> float:
        """What hoisting leaves of a load: it is out of the innermost unrolled loops along which it does not move."""
        times = 1.0
        for loop in reversed(self._loops):
            if access.is_store or access.is_async or not loop.is_unrolled or _fills(loop, access):
                break
            if not access.place.depends(loop):
                times /= loop.trips
        return times


def _fills(loop: Loop, access: GpuAccess) -> bool:
    """Whether a loop writes what is read: shared memory."""
    if not access.is_shared:
        return False
    return any(touch.is_shared and touch.is_store for each in straight(loop.inside) for touch in each.touches)


def _in_order(inside: Sequence[Inside]) -> list[Straight | Loop]:
    """The code with that of branches and unrolled loops, in order; other loops as one."""
    found: list[Straight | Loop] = []
    for each in inside:
        if isinstance(each, Branch) or (isinstance(each, Loop) and each.is_unrolled):
            found += _in_order(each.inside)
        elif isinstance(each, Loop | Straight):
            found.append(each)
    return found


def _waits_at_once(code: Sequence[Straight | Loop]) -> bool:
    """Whether what is loaded is used before anything else is computed; in registers it only waits."""
    is_pending = worked = False
    for each in code:
        if isinstance(each, Loop):
            worked = worked or is_pending
            continue
        is_pending = is_pending or any(touch.is_loaded and not touch.is_async for touch in each.touches)
        if is_pending and each.uses:
            return not worked
        worked = worked or (is_pending and each.arithmetic > 0)
    return False
