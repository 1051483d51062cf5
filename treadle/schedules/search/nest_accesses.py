"""The loops of a nest's finished kernel, and how they move what its straight code accesses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import TypeAlias

from treadle.errors import TreadleError
from treadle.index.algebra import alignment
from treadle.index.expr import const
from treadle.schedules.access_analysis import Digits
from treadle.schedules.nest.nest import Axis, Nest, Stage
from treadle.schedules.search.group_cost import GroupCost, Touched
from treadle.schedules.search.work import REGISTER_BYTES
from treadle.target import Target

BLOCK = "block"
"""The variable that numbers blocks."""
Key: TypeAlias = tuple[str, int]
"""What a loop counts: a level of the nest, or places along a dimension of a tensor that is copied to a stage."""


@dataclass(eq=False)
class Loop:
    """A loop of the finished kernel.

    stride: positions of the axis, or indices of the tensor, from one iteration to the next; every: iterations of the
    loop that it was split from; is_written: unrolled, as the builder says; indexes: some buffer in registers
    """

    key: Key
    trips: int
    stride: int
    every: int = 1
    is_written: bool = False
    indexes: bool = False
    is_unrolled: bool = False
    inside: list[Inside] = field(default_factory=list["Inside"])


@dataclass(eq=False)
class Branch:
    """What is executed in a part of the iterations of the loops around."""

    part: float
    inside: list[Inside]


@dataclass
class Code:
    """Straight code: operations, and loads and stores of memory.

    vector: a loop of one iteration a lane where the code is of vectors; sums: the accumulators that it adds to, if
    these are in registers; masked: the loads and stores that masks of lanes guard
    """

    arithmetic: float = 0.0
    loads: Sequence[Access] = ()
    stores: Sequence[Access] = ()
    vector: Loop | None = None
    sums: Access | None = None
    masked: Sequence[Access] = ()


Inside: TypeAlias = Loop | Branch | Code


class Access(ABC):
    """What straight code reads or writes at one place.

    buffer: which tensor or local buffer; bytes: of an element
    """

    buffer: Hashable
    bytes: int

    @abstractmethod
    def moved(self, loop: Loop) -> list[tuple[float, int]]:
        """How the iterations of a loop move the place: (trips, stride in bytes) of each digit, the lowest first."""

    @abstractmethod
    def depends(self, loop: Loop) -> bool:
        """Whether a loop moves the place."""

    def blocks(self) -> list[tuple[float, int]]:
        """How blocks move it."""
        return []


@dataclass(eq=False)
class TensorAccess(Access):
    """Of a tensor in memory. `filled`: the same, given the indices of the tensor that a stage copies."""

    touched: Touched
    cost: GroupCost
    nest: Nest
    filled: Touched | None = None

    def __post_init__(self) -> None:
        self.buffer, self.bytes = self.touched.buffer, self.touched.bytes

    def digits(self, loop: Loop) -> Digits:
        """Of what the loop counts."""
        kind, number = loop.key
        if kind == "level":
            return self.along(self.nest.levels[number].axis)
        assert self.filled is not None
        return self.filled.digits[number]

    def along(self, axis: Axis) -> Digits:
        """Of an axis."""
        return self.cost.along(self.touched, axis)

    def is_moved(self, axis: Axis) -> bool:
        """Whether an axis moves the place."""
        return any(step for _, step in self.along(axis))

    def moved(self, loop: Loop) -> list[tuple[float, int]]:
        return moved(self.digits(loop), loop.stride, loop.trips)

    def depends(self, loop: Loop) -> bool:
        return depends(self.digits(loop), loop.stride, loop.trips)

    def blocks(self) -> list[tuple[float, int]]:
        found: list[tuple[float, int]] = []
        for level in reversed(self.nest.blocks):
            found += moved(self.along(level.axis), level.stride, level.trips) or [(level.trips, 0)]
        return found


@dataclass(eq=False)
class BufferAccess(Access):
    """Of a local buffer. `steps`: bytes that an iteration of each loop moves it, before loops are split."""

    buffer: Hashable
    bytes: int
    steps: Mapping[Key, int]

    def moved(self, loop: Loop) -> list[tuple[float, int]]:
        step = self.steps.get(loop.key, 0)
        return [(float(loop.trips), step * loop.every)] if step else []

    def depends(self, loop: Loop) -> bool:
        return bool(self.steps.get(loop.key, 0))


def pieces(key: Key, trips: int, stride: int, tensors: Sequence[Digits]) -> list[Loop]:
    """The loops that one is split to at the digits of addresses, outermost first."""
    ends: set[int] = set()
    for digits in tensors:
        weight = 1
        for size, _ in digits[:-1]:
            weight *= int(size)
            if weight % stride == 0:
                ends.add(weight // stride)
    found: list[Loop] = []
    inner = 1
    for end in sorted(end for end in ends if 1 < end < trips and trips % end == 0):
        if end % inner == 0:
            found.insert(0, Loop(key, end // inner, stride * inner, inner))
            inner = end
    return [Loop(key, trips // inner, stride * inner, inner), *found]


def nested(loops: Sequence[Loop], inside: Sequence[Inside]) -> list[Inside]:
    """Loops inside one another."""
    found: list[Inside] = list(inside)
    for loop in reversed(loops):
        loop.inside = found
        found = [loop]
    return found


def moved(digits: Digits, stride: int, trips: int) -> list[tuple[float, int]]:
    """How far `trips` iterations of `stride` positions each move a place, given an axis's digits."""
    found: list[tuple[float, int]] = []
    weight, start = 1, stride
    for n, (size, step) in enumerate(digits):
        end = weight * int(size)
        if start < end or n == len(digits) - 1:
            most = trips if n == len(digits) - 1 else -(-end // start)
            taken = min(trips, most)
            found.append((float(taken), step * max(1, start // weight)))
            trips, start = -(-trips // taken), max(start, end)
            if trips == 1:
                break
        weight = end
    return found


def depends(digits: Digits, stride: int, trips: int) -> bool:
    """Whether a loop moves a place: directly, or where what its iterations add is carried into a higher digit."""
    if any(step for _, step in moved(digits, stride, trips)):
        return True
    weight = 1
    for n, (size, _) in enumerate(digits[:-1]):
        weight *= int(size)
        if weight % (stride * trips) and any(step for _, step in digits[n + 1 :]):
            return True
    return False


# The copies of a nest's reads to stages in registers: their loops, what they access, and what then reads the stage.


class StagedRead:
    """One read of the term that goes through a stage.

    place: as the stage's; held: what reads it where the levels stand; is_in_memory: too large for registers
    """

    def __init__(self, nest: Nest, stage: Stage, cost: GroupCost, target: Target, version: int, past: Sequence[Axis]):
        read = nest.workload.reads[stage.read]
        if cost.term is None or not read.is_term or stage.memory != "register" or stage.read not in cost.operands:
            accepted = "stages in registers, of reads inside of a reduction"
            raise TreadleError("such a stage is counted on kernels only", "work of a nest", accepted)
        self.place, self.operand = stage.compute_at, cost.operands[stage.read]
        self._nest, self._stage, self._cost, self._target, self._read = nest, stage, cost, target, read
        self._layout = layout = nest.layout(stage)
        self._is_indexed = layout.elements <= target.vector_registers * target.lanes
        shape = layout.shape
        self._rows = [prod(shape[n + 1 :]) * read.bytes for n in range(len(shape))]
        box = layout.box
        apart = dict(zip(box.apart, self._rows, strict=False))
        rows = dict(zip(layout.order, self._rows[len(apart) :], strict=True))
        steps = {n: sum(step * rows[dim] for dim, step in enumerate(box.place_steps(n))) for n in box.steps}
        found: dict[Key, int] = {("level", n): abs(apart.get(n, step)) for n, step in steps.items()}
        box_keys: list[tuple[Key, int, int]] = [
            (("level", n), trips, nest.levels[n].stride) for n, trips in box.apart.items()
        ]
        self._keys = [*box_keys, *((("place", dim), box.extents[dim], box.scale[dim]) for dim in layout.order)]
        self._loads = [
            TensorAccess(touched, cost, nest, filled)
            for touched, filled in zip(self.operand.step.reads, self.operand.filled, strict=True)
        ]
        ends = [axis for axis in past if axis.dimensions & read.dims]
        self._is_padded = bool(ends) or any(touched.guards for touched in self.operand.step.reads)
        level, last = nest.levels[-1], len(nest.levels) - 1
        is_part = last in box.steps and level.vector and level.trips > 1 and level.trips % target.lanes > 0
        # Of an array that masks access a part of, compilers keep nothing in registers.
        self._is_partial = self._fills_vectors() and self._keys[-1][1] % target.lanes > 0
        is_masked = self._is_partial or (is_part and self.allows_lanes(last))
        self.is_in_memory = layout.elements * read.bytes > REGISTER_BYTES or is_masked
        self.held = BufferAccess(("stage", stage.read, version), read.bytes, found)

    def is_indexed_by(self, number: int) -> bool:
        """Whether a level moves the place of a stage that may be in registers."""
        return self._is_indexed and bool(self.held.steps.get(("level", number), 0))

    def allows_lanes(self, number: int) -> bool:
        """Whether what lanes along a level read is a vector, strided, or the same for all."""
        box, last = self._layout.box, self._layout.order[-1]
        if number not in box.steps:
            return True
        others = [step for dim, step in enumerate(box.place_steps(number)) if dim != last]
        return number not in box.apart and not any(others) and self.operand.is_f32

    def filling(self) -> list[Inside]:
        """The loops that fill the stage."""
        operand, keys, loads = self.operand, self._keys, self._loads
        rows = {key: row for (key, _, _), row in zip(keys, self._rows, strict=True)}
        store = BufferAccess(self.held.buffer, self._read.bytes, rows)
        *outer, (key, trips, stride) = [each for each in keys if each[1] > 1] or [keys[-1]]
        loops = [loop for each in outer for loop in pieces(*each, _digits(loads, each[0]))]
        vector, lanes = None, self._target.lanes
        if key == keys[-1][0] and self._fills_vectors():
            vector = Loop(key, lanes, stride)
            trips, stride = -(-trips // lanes), stride * lanes
        loops.append(Loop(key, trips, stride, 1 if vector is None else lanes))
        stores = [store] if self.is_in_memory else []
        masked = [*(loads if self._is_padded or self._is_partial else []), *(stores if self._is_partial else [])]
        code = Code(operand.step.arithmetic, loads, stores, vector, masked=masked)
        for loop in loops:
            loop.indexes = self._is_indexed
        return nested([loop for loop in loops if loop.trips > 1], [code])

    def _fills_vectors(self) -> bool:
        """Whether the stage is filled by vectors."""
        (_, dim), trips, stride = self._keys[-1]
        return trips > 1 and self._is_vector(self._loads, dim, trips, stride)

    def _is_vector(self, loads: list[TensorAccess], dim: int, trips: int, stride: int) -> bool:
        """Whether all accesses along the stage's last dimension are vectors, strided, or the same for all lanes."""
        lanes = self._target.lanes
        reach = lanes * stride
        for load in loads:
            assert load.filled is not None
            digits = load.filled.digits[dim]
            step = moved(digits, stride, lanes)
            if step and step[0][1] and not load.touched.is_f32:
                return False
            if len(digits) > 1 and not self._is_in_digits(digits, dim, trips, reach):
                return False
        return self.operand.is_f32

    def _is_in_digits(self, digits: Digits, dim: int, trips: int, reach: int) -> bool:
        """Whether no vector, of `reach` indices, carries into a higher digit."""
        first = self._alignment(dim)
        weight = 1
        for size, _ in digits[:-1]:
            weight *= int(size)
            is_alone = first == 0 and trips <= self._target.lanes and weight >= reach
            if gcd(first, weight) % reach and not is_alone:
                return False
        return True

    def _alignment(self, dim: int) -> int:
        """What the index at the box's first place is a multiple of; 0 where that is always 0."""
        nest, box = self._nest, self._layout.box
        moving = set(nest.moving(self._stage.compute_at, self._stage.memory))
        index = nest.indices(self._stage.read)[dim].substitute({("level", n): const(0) for n in moving})
        return alignment(index - box.low[dim] * box.scale[dim])


def _digits(loads: list[TensorAccess], key: Key) -> list[Digits]:
    probe = Loop(key, 1, 1)
    return [load.digits(probe) for load in loads]


def staged_reads(
    nest: Nest, cost: GroupCost, target: Target, version: int, past: Sequence[Axis]
) -> dict[int, StagedRead]:
    """The reads that go through stages, by their numbers; each version of the tile has stages of its own but for those
    that blocks fill. TreadleError for stages that only a kernel tells of.

    past: the axes beyond whose ends this version of the tile may reach
    """
    outer, all_ends = len(nest.blocks), [axis for axis in nest.axes if nest.overhangs(axis)]
    return {
        stage.read: StagedRead(nest, stage, cost, target, 0, all_ends)
        if stage.compute_at == outer
        else StagedRead(nest, stage, cost, target, version, past)
        for stage in nest.stages
    }
