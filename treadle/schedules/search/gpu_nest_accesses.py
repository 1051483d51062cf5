"""The straight code of a nest's kernel for a GPU: what it accesses, and what `loop-vectorize-accesses` makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from treadle.errors import TreadleError
from treadle.index.algebra import likelihood, split_linear
from treadle.index.expr import Expr, const
from treadle.schedules.access_analysis import Digits
from treadle.schedules.nest.nest import Nest, Stage
from treadle.schedules.nest.staging import filling_of
from treadle.schedules.search.group_cost import GroupCost, Guard, Touched
from treadle.schedules.search.nest_accesses import Branch, Code, Inside, Key, Loop, depends, moved

# Places in memory, and differences that predicates compare, as functions of a nest's loops and threads.

Values: TypeAlias = Mapping[Key, Any]
"""The iterations of levels and of other variables: numbers, or an array with one for each thread."""

WHOLE: Digits = ((float(2**62), 1),)
"""Of a coordinate that is the place itself."""


@dataclass(frozen=True)
class Coordinate:
    """A sum of variables, of which the digits move a place.

    steps: how far an iteration of each variable moves the sum; base: the sum where all of them are 0
    is_clamped: to the last position of an axis, so that it is not known to move by as much
    """

    digits: Digits
    base: int
    steps: Mapping[Key, int]
    is_clamped: bool = False


@dataclass(frozen=True)
class Place:
    """A place, in bytes: `start`, and what the coordinates add.

    trips: iterations of each variable; about: variables that move it in another way
    """

    start: int
    coordinates: tuple[Coordinate, ...]
    trips: Mapping[Key, int]
    about: frozenset[Key] = frozenset()

    def at(self, values: Values) -> Any:
        """The place for some iterations; variables that are left out stand at 0."""
        total: Any = self.start
        for each in self.coordinates:
            position: Any = each.base
            for key, step in each.steps.items():
                if key in values:
                    position = position + values[key] * step
            total = total + _digits_at(each.digits, position)
        return total

    def depends(self, loop: Loop) -> bool:
        """Whether the iterations of a loop move the place: rounds of threads that copy all do."""
        if loop.key[0] == "copy" or loop.key in self.about:
            return True
        for each in self.coordinates:
            step = abs(each.steps.get(loop.key, 0) * loop.every)
            if step and depends(each.digits, step, loop.trips):
                return True
        return False

    def moves_by(self, loop: Loop, distance: int) -> bool:
        """Whether an iteration of a loop moves the place so far along some coordinate."""
        return any((own := _moved(each, loop)) and own[0][1] == distance for each in self.coordinates)

    def is_run(self, loop: Loop, lanes: int, width: int) -> bool:
        """Whether each `lanes` iterations of a loop reach places `width` apart, the first at a multiple of all."""
        found = False
        if self.about:
            return False
        for each in self.coordinates:
            own = _moved(each, loop)
            if own and (found or each.is_clamped or own[0][1] != width or own[0][0] % lanes):
                return False
            if loop.key in each.steps and not self._is_aligned(each, loop, lanes):
                return False
            found = found or bool(own)
        return found and self.at({}) % (lanes * width) == 0 and self._steps_by(loop, lanes * width)

    def _steps_by(self, loop: Loop, unit: int) -> bool:
        """Whether all variables but a loop's own move the place by multiples of a unit."""
        for each in self.coordinates:
            for step, trips in self._others(each, loop):
                if any(moving % unit for _, moving in moved(each.digits, step, trips)):
                    return False
        return True

    def _is_aligned(self, coordinate: Coordinate, loop: Loop, lanes: int) -> bool:
        """Whether lanes do not carry from one digit into the next."""
        if len(coordinate.digits) == 1 or coordinate.is_clamped:
            return True
        unit = coordinate.steps[loop.key] * loop.every * lanes
        return not (coordinate.base % unit or any(step % unit for step, _ in self._others(coordinate, loop)))

    def _others(self, coordinate: Coordinate, loop: Loop | None) -> Iterator[tuple[int, int]]:
        """How far the other variables move a coordinate, and how often."""
        for key, step in coordinate.steps.items():
            trips = self.trips.get(key, 1)
            if loop is not None and key == loop.key:
                inner = loop.every * loop.trips
                step, trips = step * inner, trips // inner
            if trips > 1 and step:
                yield (1 if coordinate.is_clamped else abs(step)), trips

    def bounds(self, loop: Loop | None = None, first: int = 0) -> tuple[int, int]:
        """The least and the largest place; where the variable of a loop stands at `first`, if one is given."""
        lo = hi = self.start
        for each in self.coordinates:
            least = most = each.base
            for key, step in each.steps.items():
                reach = (self.trips.get(key, 1) - 1) * step
                if loop is not None and key == loop.key:
                    inner = loop.every * loop.trips
                    reach = (self.trips[key] // inner - 1) * inner * step
                    least, most = least + first * loop.every * step, most + first * loop.every * step
                least, most = least + min(reach, 0), most + max(reach, 0)
            ends = _range_of(each.digits, least, most)
            lo, hi = lo + ends[0], hi + ends[1]
        return lo, hi


@dataclass(frozen=True)
class Check:
    """A predicate of an access: `place kind 0`; no kind for one that no lanes agree on."""

    kind: str
    place: Place

    @property
    def is_true(self) -> bool:
        """Whether it always holds."""
        return bool(self.kind) and likelihood(self.kind, self.place.bounds()) == 1.0

    def agrees(self, loop: Loop, lanes: int) -> bool:
        """Whether it holds for all of `lanes` iterations of a loop, or for none of them."""
        if not self.kind or not self.place.depends(loop):
            return bool(self.kind)
        if self.kind in ("eq", "ne"):
            return False
        later = 1 if self.kind in ("sle", "sgt") else 0
        place = replace(self.place, start=self.place.start - later)
        return place.is_run(loop, lanes, 1)

    def probability(self, loop: Loop, first: int, blocks: tuple[Key, ...]) -> float:
        """How likely it holds where the variable of a loop stands at `first`, if all values of the difference are
        equally likely; what blocks move counts as true."""
        place = self.place
        if any(place.trips.get(key, 1) > 1 and each.steps.get(key) for key in blocks for each in place.coordinates):
            return 1.0
        return likelihood(self.kind, place.bounds(loop, first))


def _moved(coordinate: Coordinate, loop: Loop) -> list[tuple[float, int]]:
    """How a loop moves a place along a coordinate; nothing where it does not."""
    step = coordinate.steps.get(loop.key, 0) * loop.every
    if not step:
        return []
    found = moved(coordinate.digits, abs(step), loop.trips)
    return [(n, -s if step < 0 else s) for n, s in found] if any(s for _, s in found) else []


def _digits_at(digits: Digits, position: Any) -> Any:
    """What a coordinate adds to a place."""
    if len(digits) == 1:
        return position * digits[0][1]
    total: Any = 0
    weight = 1
    for n, (size, step) in enumerate(digits):
        digit = position // weight if n == len(digits) - 1 else position // weight % int(size)
        total, weight = total + digit * step, weight * int(size)
    return total


def _range_of(digits: Digits, least: int, most: int) -> tuple[int, int]:
    """The range of what a coordinate adds."""
    lo = hi = 0
    weight = 1
    for n, (size, step) in enumerate(digits):
        first, last = least // weight, most // weight
        if n < len(digits) - 1:
            whole = first // int(size) != last // int(size)
            first, last = (0, int(size) - 1) if whole else (first % int(size), last % int(size))
        lo, hi = lo + min(first * step, last * step), hi + max(first * step, last * step)
        weight *= int(size)
    return lo, hi


_MOST_BYTES, _MOST_TRIPS = 16, 16
"""Of an access, and iterations of a loop whose accesses are combined: the defaults of `loop-vectorize-accesses`."""


@dataclass(frozen=True, eq=False)
class GpuAccess:
    """An access to global or shared memory.

    place: in bytes from the beginning of the buffer; element: bytes of one; checks: its predicates that may not hold
    threads: what the block's threads begin with; is_data: where it is depends on data
    lanes: elements of one access; along: the loop of which each iteration of `starts` begins one, where they are
        combined
    """

    place: Place
    element: int
    is_store: bool
    is_shared: bool
    threads: Values
    checks: tuple[Check, ...] = ()
    is_data: bool = False
    is_async: bool = False
    lanes: int = 1
    along: Loop | None = None
    starts: Sequence[int] = (0,)

    @property
    def is_loaded(self) -> bool:
        """Whether it is a load from global memory, that a thread may wait for."""
        return not (self.is_store or self.is_shared)

    def widths(self, loop: Loop) -> list[int]:
        """Every number of a loop's iterations that one access may serve, largest first."""
        if self.is_data or not self.place.moves_by(loop, self.element):
            return []
        counts = [2**n for n in range(4, 0, -1) if 2**n * self.element <= _MOST_BYTES and loop.trips % 2**n == 0]
        return [n for n in counts if self.place.is_run(loop, n, self.element) and self._agrees(loop, n)]

    def _agrees(self, loop: Loop, lanes: int) -> bool:
        return all(check.agrees(loop, lanes) for check in self.checks)

    def combined(self, loop: Loop, lanes: int) -> GpuAccess:
        """One access for every `lanes` iterations of a loop."""
        return replace(self, lanes=lanes, along=loop, starts=range(0, loop.trips, lanes))

    def likely(self, first: int, blocks: tuple[Key, ...]) -> float:
        """How likely the access that begins with iteration `first` is made: combined ones are in a branch."""
        found = 1.0
        if self.along is not None:
            for check in self.checks:
                found *= check.probability(self.along, first, blocks)
        return found


@dataclass(eq=False)
class Straight(Code):
    """Straight code of one thread.

    touches: its accesses, loads first; uses: whether it uses what was loaded from global memory
    copies: whether it is a load and a store of what is loaded, and nothing else: to memory, or where one of the two is
        in registers
    registers: of arrays that are live in it beside those of the whole kernel
    is_barrier: of the block; pending: groups of asynchronous copies that are not waited for
    """

    touches: Sequence[GpuAccess] = ()
    uses: bool = False
    copies: Literal["", "memory", "registers"] = ""
    registers: int = 0
    is_barrier: bool = False
    pending: int | None = None
    after: bool = field(default=False)
    """Whether nothing of what was fetched ahead is live any more."""


def vectorised(inside: Sequence[Inside]) -> list[Inside]:
    """The same with accesses combined."""
    found: list[Inside] = []
    for each in inside:
        if isinstance(each, Branch):
            each.inside = vectorised(each.inside)
            found.append(each)
        elif isinstance(each, Loop):
            found += _of_loop(each)
        else:
            found.append(each)
    return found


def straight(inside: Sequence[Inside]) -> list[Straight]:
    """All straight code, that of loops and branches, too."""
    found: list[Straight] = []
    for each in inside:
        if isinstance(each, Straight):
            found.append(each)
        elif isinstance(each, Loop | Branch):
            found += straight(each.inside)
    return found


def _of_loop(loop: Loop) -> list[Inside]:
    """A loop, with the combined accesses of its own code around it; that code alone where it copies, and nothing is
    left of the loop."""
    alone = loop.inside[0] if len(loop.inside) == 1 else None
    own = [each for each in loop.inside if isinstance(each, Straight)]
    if alone is None or not own:
        loop.inside = vectorised(loop.inside)
    if not 1 < loop.trips <= _MOST_TRIPS or not any(each.touches for each in own):
        return [loop]
    every = straight(loop.inside)
    if any(each.is_barrier or each.pending is not None for each in every):
        return [loop]
    if isinstance(alone, Straight) and alone.copies:
        widths = [set(each.widths(loop)) for each in alone.touches]
        common = widths[0].intersection(*widths[1:])
        if common:
            alone.touches = [each.combined(loop, max(common)) for each in alone.touches]
            return [alone]
    before, behind = Straight(), Straight()
    for code in own:
        wide = [(each, counts[0]) for each in code.touches if (counts := each.widths(loop))]
        code.touches = [each for each in code.touches if each not in [one for one, _ in wide]]
        combined = [each.combined(loop, lanes) for each, lanes in wide]
        before.touches = [*before.touches, *(each for each in combined if not each.is_store)]
        behind.touches = [*behind.touches, *(each for each in combined if each.is_store)]
        behind.uses = behind.uses or code.uses
        before.after, behind.after = code.after, code.after
    found = [*before.touches, *behind.touches]
    if not found:
        return [loop]
    for code in every:
        code.registers += sum(-(-each.element * loop.trips // 4) for each in found)
    loop.indexes = True
    return [before, loop, behind]


# The copies of a nest's reads to shared memory: what the threads of a block access to fill a stage, and to read it.

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
        moving = set(nest.moving(stage.compute_at, stage.memory))
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
        moving = {("level", n): const(0) for n in nest.moving(self.stage.compute_at, self.stage.memory)}
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
