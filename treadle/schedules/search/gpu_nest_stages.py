"""The copies of a nest's reads to shared memory: what the threads of a block access to fill a stage, and to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal

import numpy as np

from treadle.errors import TreadleError
from treadle.index.algebra import split_linear
from treadle.index.expr import Expr, const
from treadle.schedules.digits import Digits
from treadle.schedules.nest.filling import filling_of
from treadle.schedules.nest.nest import Nest, Stage
from treadle.schedules.search.gpu_nest_accesses import GpuAccess, Straight
from treadle.schedules.search.gpu_places import WHOLE, Check, Coordinate, Place, Values
from treadle.schedules.search.group_cost import GroupCost, Guard, Touched
from treadle.schedules.search.nest_accesses import Branch, Inside, Key, Loop

_ELEMENT: Key = ("element", 0)
_ASYNC_BYTES = 4
"""The fewest that an asynchronous copy moves."""

Copy = Literal["fill", "fetch", "keep", "start"]
"""To shared memory; to registers, and from there to shared memory; asynchronously."""


class SharedStage:
    """One read of the term that goes through shared memory."""

    def __init__(self, nest: Nest, stage: Stage, cost: GroupCost, threads: Values):
        read = nest.workload.reads[stage.read]
        if cost.term is None or not read.is_term or stage.memory != "shared" or stage.read not in cost.operands:
            accepted = "stages in shared memory, of reads inside of a reduction"
            raise TreadleError("such a stage is counted on kernels only", "work of a nest", accepted)
        self.stage, self.operand = stage, cost.operands[stage.read]
        self._nest, self._read, self._threads = nest, read, threads
        self._layout = layout = nest.layout(stage)
        self._filling = filling_of(layout, read.order, read.bytes, stage.vector, is_async=stage.is_async)
        self._rows = [prod(layout.shape[n + 1 :]) * read.bytes for n in range(len(layout.shape))]
        self._rounds = self._filling.mapping(nest.threads).loops[0]
        moving = set(nest.moving(stage.place, stage.memory))
        self._outer = [n for n, level in enumerate(nest.levels) if n not in moving and level.trips > 1]
        self._index = self._indices()
        self._trips: dict[Key, int] = {_ELEMENT: self._filling.vector}
        self._trips |= {("level", n): nest.levels[n].trips for n in self._outer}
        self._parts: dict[Key, Any] = {}
        self._number(np.arange(nest.threads))
        self._ends = self._reached_ends()

    def _number(self, thread: Any) -> None:
        """The digits of the number of what each thread copies. The outermost is not bounded: some threads may have
        nothing to copy."""
        shape, rest = self._filling.shape, prod(self._filling.shape)
        for n, extent in enumerate(shape):
            weight = prod(shape[n + 1 :])
            if extent > 1:
                is_outermost = weight * extent == rest
                self._parts["part", n] = thread // weight if is_outermost else thread // weight % extent
                self._trips["part", n] = -(-self._rounds * len(thread) // weight) if is_outermost else extent

    def _reached_ends(self) -> list[tuple[int, str, int, int]]:
        """The ends of the tensor that tiles reach beyond, as conditions."""
        box, found = self._layout.box, list[tuple[int, str, int, int]]()
        for dim, (first, steps) in enumerate(self._index):
            outer = [steps.get(("level", n), 0) * (self._nest.levels[n].trips - 1) for n in self._outer]
            apart = [box.steps[n][dim] * (trips - 1) for n, trips in box.apart.items()]
            reach = [*outer, *apart, (box.extents[dim] - 1) * box.scale[dim]]
            least, most = first + sum(min(each, 0) for each in reach), first + sum(max(each, 0) for each in reach)
            found += [(dim, "sge", 1, 0)] if least < 0 else []
            found += [(dim, "slt", 1, -self._read.shape[dim])] if most >= self._read.shape[dim] else []
        return found

    @property
    def registers(self) -> int:
        """Registers of a thread that hold what it fetches before it is kept."""
        is_fetched = self.stage.buffers > 1 and not self.stage.is_async
        return -(-self._rounds * self._filling.vector * self._read.bytes // 4) if is_fetched else 0

    def held(self, half: int) -> GpuAccess:
        """The access that reads the stage where the levels stand."""
        box, size, order = self._layout.box, self._read.bytes, self._layout.order
        apart = dict(zip(box.apart, self._rows, strict=False))
        rows = dict(zip(order, self._rows[len(apart) :], strict=True))
        steps: dict[Key, int] = {}
        for n in box.steps:
            steps["level", n] = apart.get(n) or sum(step * rows[dim] for dim, step in enumerate(box.place_steps(n)))
        start = sum(low * rows[dim] for dim, low in enumerate(box.low)) + half * self._buffer_bytes
        trips: dict[Key, int] = {key: self._nest.levels[key[1]].trips for key in steps}
        place = Place(0, (Coordinate(WHOLE, start, steps),), trips)
        return GpuAccess(place, size, False, True, self._threads)

    def copies(self, kind: Copy, fixed: Mapping[int, int], half: int = 0) -> list[Inside]:
        """The code that copies all; levels of `fixed` do so many iterations more."""
        filling, vector = self._filling, self._filling.vector
        copied = self._code(kind, fixed, half)
        code: Inside = copied
        if vector > 1 and not copied.touches[0].is_async:
            code = Loop(_ELEMENT, vector, 1, is_written=True, inside=[copied])
        if filling.vectors % self._nest.threads:
            code = Branch(filling.vectors / (self._rounds * self._nest.threads), [code])
        if self._rounds > 1:
            code = Loop(("copy", 0), self._rounds, 1, is_written=True, inside=[code])
        return [code]

    def _code(self, kind: Copy, fixed: Mapping[int, int], half: int) -> Straight:
        stored = self._stored(half)
        if kind == "keep":
            return Straight(touches=[stored], uses=True, copies="registers")
        operand, loaded = self.operand, [self._loaded(each, fixed) for each in self.operand.filled]
        selects = 1.0 if operand.step.arithmetic and self._checks((), fixed) else 0.0
        arithmetic = operand.step.arithmetic + selects
        is_copy = len(loaded) == 1 and not arithmetic
        if kind == "start" and is_copy and (width := self._async_width(loaded[0])):
            return self._started(loaded[0], stored, width)
        if kind == "fetch":
            uses = arithmetic > 0
            return Straight(arithmetic, touches=loaded, uses=uses, copies="registers" if is_copy else "")
        return Straight(arithmetic, touches=[*loaded, stored], uses=True, copies="memory" if is_copy else "")

    def _async_width(self, load: GpuAccess) -> int:
        """Elements of an asynchronous copy; 0 where none is that small."""
        size, vector = self._read.bytes, self._filling.vector
        if size not in (2, 4) or load.is_data or any(guard.kind == "" for guard in load.checks):
            return 0
        lanes = Loop(_ELEMENT, vector, 1)
        width = next((n for n in load.widths(lanes) if vector % n == 0), 1) if vector > 1 else 1
        return width if width * size >= _ASYNC_BYTES else 0

    def _started(self, load: GpuAccess, store: GpuAccess, width: int) -> Straight:
        """Asynchronous copies: none of them is in a branch."""
        lanes = Loop(_ELEMENT, self._filling.vector, 1)
        both = [load.combined(lanes, width), store.combined(lanes, width)]
        return Straight(touches=[replace(each, checks=(), is_async=True) for each in both])

    @property
    def _buffer_bytes(self) -> int:
        return self._layout.elements * self._read.bytes

    def _stored(self, half: int) -> GpuAccess:
        apart, order = len(self._layout.box.apart), self._layout.order
        rows = [*self._rows[:apart], *(self._rows[apart + order.index(dim)] for dim in range(len(order)))]
        steps: dict[Key, int] = {}
        for key, dim, step in self._digits():
            steps[key] = steps.get(key, 0) + step * rows[dim]
        place = Place(0, (Coordinate(WHOLE, half * self._buffer_bytes, steps),), self._trips)
        return GpuAccess(place, self._read.bytes, True, True, self._parts)

    def _digits(self) -> list[tuple[Key, int, int]]:
        """The variables that number what is copied, with the dimension of the box that each moves, and how far."""
        last = len(self._filling.digits) - 1
        found: list[tuple[Key, int, int]] = []
        for n, (dim, _, step) in enumerate(self._filling.digits):
            found.append((("part", n), dim, step * self._filling.vector if n == last else step))
        dim, _, step = self._filling.digits[last]
        return [*found, (_ELEMENT, dim, step)]

    def _indices(self) -> list[tuple[int, dict[Key, int]]]:
        """Along each dimension of the tensor: the index of the first place, and what outer levels and the digits of
        places add."""
        box, read = self._layout.box, self._read
        apart, steps = len(box.apart), self._outer_steps()
        found: list[tuple[int, dict[Key, int]]] = []
        for dim, index in enumerate(read.indices):
            first = index.evaluate({v.key: 0 for v in index.vars()}) - box.low[dim] * box.scale[dim]
            mine = {key: step for key, step in steps[dim].items() if step}
            for key, where, step in self._digits():
                level = list(box.apart)[where] if where < apart else None
                own = box.scale[dim] if where == apart + dim else 0 if level is None else box.steps[level][dim]
                if own:
                    mine[key] = mine.get(key, 0) + step * own
            found.append((first, mine))
        return found

    def _outer_steps(self) -> list[dict[Key, int]]:
        """How far levels outside of the stage move each index; by one, for what is not known, where that is no
        constant."""
        nest, read = self._nest, self._read
        if read.coefficients is not None and all(len(level.axis.shape) == 1 for level in nest.levels):
            levels = [(n, nest.levels[n]) for n in self._outer]
            return [{("level", n): c.get(lv.axis.first, 0) * lv.stride for n, lv in levels} for c in read.coefficients]
        moving = {("level", n): const(0) for n in nest.moving(self.stage.place, self.stage.memory)}
        indices = [index.substitute(moving) for index in nest.indices(self.stage.read)]
        return [{("level", n): _step(index, n) for n in self._outer} for index in indices]

    def _coordinates(self, digits: Sequence[Digits], fixed: Mapping[int, int]) -> tuple[Coordinate, ...]:
        found: list[Coordinate] = []
        for each, (first, steps) in zip(digits, self._index, strict=True):
            ahead = sum(steps.get(("level", n), 0) * count for n, count in fixed.items())
            if any(step for _, step in each):
                found.append(Coordinate(each, first + ahead, steps))
        return tuple(found)

    def _loaded(self, touched: Touched, fixed: Mapping[int, int]) -> GpuAccess:
        about = frozenset(key for dim in touched.about for key in self._index[dim][1])
        place = Place(touched.start, self._coordinates(touched.digits, fixed), self._trips, about)
        checks = self._checks(touched.guards, fixed)
        return GpuAccess(place, touched.bytes, False, False, self._parts, checks, touched.is_data)

    def _checks(self, guards: Sequence[Guard], fixed: Mapping[int, int]) -> tuple[Check, ...]:
        """The predicates of what is loaded: its own ones, and the ends that tiles reach beyond."""
        own = [
            Check(each.kind, Place(each.start, self._coordinates(each.digits, fixed), self._trips)) for each in guards
        ]
        given = [(each.dim, each.kind, each.scale, each.constant) for each in self._read.conditions]
        for dim, kind, scale, constant in dict.fromkeys([*given, *self._ends]):
            first, steps = self._index[dim]
            ahead = sum(steps.get(("level", n), 0) * count for n, count in fixed.items())
            digits = ((WHOLE[0][0], scale),)
            own.append(Check(kind, Place(constant, (Coordinate(digits, first + ahead, steps),), self._trips)))
        return tuple(check for check in own if not check.is_true)


def _step(index: Expr, number: int) -> int:
    split = split_linear(index, ("level", number))
    step = None if split is None else split[0].as_int()
    return 1 if step is None else step


__all__ = ["Copy", "SharedStage"]
