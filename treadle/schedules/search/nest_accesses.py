"""The loops of a nest's finished kernel, and how they move what its straight code accesses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from treadle.schedules.digits import Digits
from treadle.schedules.nest.nest import Axis, Nest
from treadle.schedules.search.group_cost import GroupCost, Touched

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


__all__ = [
    "BLOCK", "Access", "Branch", "BufferAccess", "Code", "Inside", "Key", "Loop", "TensorAccess", "depends", "moved",
    "nested", "pieces",
]  # fmt: skip
