"""The copies of a nest's reads to stages in registers: their loops, what they access, and what then reads the stage."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from treadle.errors import TreadleError
from treadle.index.algebra import alignment
from treadle.index.expr import const
from treadle.schedules.digits import Digits
from treadle.schedules.nest.nest import Axis, Nest, Stage
from treadle.schedules.search.group_cost import GroupCost
from treadle.schedules.search.nest_accesses import (
    BufferAccess,
    Code,
    Inside,
    Key,
    Loop,
    TensorAccess,
    moved,
    nested,
    pieces,
)
from treadle.schedules.search.work import REGISTER_BYTES
from treadle.target import Target


class StagedRead:
    """One read of the term that goes through a stage.

    place: as the stage's; held: what reads it where the levels stand; is_in_memory: too large for registers
    """

    def __init__(self, nest: Nest, stage: Stage, cost: GroupCost, target: Target, version: int, past: Sequence[Axis]):
        read = nest.workload.reads[stage.read]
        if cost.term is None or not read.is_term or stage.memory != "register" or stage.read not in cost.operands:
            accepted = "stages in registers, of reads inside of a reduction"
            raise TreadleError("such a stage is counted on kernels only", "work of a nest", accepted)
        self.place, self.operand = stage.place, cost.operands[stage.read]
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
        moving = set(nest.moving(self._stage.place, self._stage.memory))
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
        if stage.place == outer
        else StagedRead(nest, stage, cost, target, version, past)
        for stage in nest.stages
    }


__all__ = ["StagedRead", "staged_reads"]
