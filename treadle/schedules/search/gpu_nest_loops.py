"""The loops and the straight code of a nest's finished kernel for a GPU, from the value alone.

They are those that the builder of nests writes and the loop passes leave: single trips are gone, levels are split at
the digits of the addresses that they move, accesses of short loops are combined, short loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import TypeAlias

import numpy as np

from treadle.schedules.digits import Digits
from treadle.schedules.nest.nest import Axis, Level, Nest, Stage
from treadle.schedules.search.gpu_nest_accesses import GpuAccess, Straight, vectorised
from treadle.schedules.search.gpu_nest_stages import Copy, SharedStage
from treadle.schedules.search.gpu_places import WHOLE, Check, Coordinate, Place, Values
from treadle.schedules.search.group_cost import GroupCost, Touched, along
from treadle.schedules.search.nest_accesses import Branch, Inside, Key, Loop, nested, pieces
from treadle.schedules.search.nest_loops import is_masked, unroll

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
        found = [(each.registers, self._nest.levels[stage.place - 1].trips) for stage, each in self._stages.items()]
        return sum(size for size, _ in found), sum(size for size, trips in found if trips > 1)

    def _stages_at(self, place: int) -> list[Stage]:
        return [stage for stage in self._nest.stages if stage.place == place]

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


__all__ = ["GpuLoops", "threads_of"]
