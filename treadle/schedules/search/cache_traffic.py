"""The memory traffic of a loop nest as a function of the cache's capacity.

When the loops' variables are split into digits, so that no quotients and remainders are left, addresses are linear in
them; the footprint of loops then follows from strides and trip counts alone. A cache that has room for two iterations
of a loop loads each byte of the whole loop once; a smaller one loads the footprints of the inner loops again in each
iteration. Source: M. Wolf and M. Lam, A Data Locality Optimizing Algorithm (PLDI 1991), section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.schedules.search.work import Reuse

LINE = 64
"""The bytes of a CPU's cache line."""
_TO_MEET_AGAIN = 2.0
"""The number of iterations whose footprint a cache must have room for, so that data that iterations share is reused."""


@dataclass
class Node:
    """A loop, with the inner loops and accesses of its body. `trips` may be a mean."""

    variable: Hashable
    trips: float
    inside: list[Node | Touch] = field(default_factory=list["Node | Touch"])
    weight: float = 1.0
    """The fraction of the iterations of the enclosing loop in which it is executed."""


@dataclass(frozen=True)
class Touch:
    """An access of a number of contiguous bytes of a buffer."""

    buffer: Hashable
    width: int
    own: Sequence[tuple[float, int]]
    """(extent, stride in bytes) of each dimension of an access that is not contiguous."""
    strides: Mapping[Hashable, Sequence[tuple[float, int]]]
    """(trip count, stride in bytes) of each digit of each variable."""


@dataclass
class _Sized:
    """A node with the bytes of the cache lines that all its iterations touch, that two of them touch, and that each
    access of its own body touches by itself."""

    trips: float
    weight: float
    whole: float
    again: float
    touched: float
    inside: list[_Sized]


_Steps = list[tuple[float, int]]
"""(trips, stride in bytes) of what moves an access."""


def reuse_of(root: Node) -> tuple[Reuse, ...]:
    """The traffic for each capacity at which it falls: those of the loops' working sets."""
    sized, _ = _size(root)
    found: list[Reuse] = []
    for capacity in sorted({0.0, *_working_sets(sized)}):
        moved = _moved(sized, capacity)
        if not found or moved < found[-1].traffic:
            found.append(Reuse(capacity, moved))
    return tuple(found)


def _size(node: Node) -> tuple[_Sized, list[tuple[Touch, _Steps]]]:
    """The node's sizes, and the accesses inside it, each with what moves it within the node."""
    inside: list[_Sized] = []
    moved: list[tuple[Touch, _Steps]] = []
    touched = 0.0
    for each in node.inside:
        if isinstance(each, Node):
            sized, below = _size(each)
            inside.append(sized)
            moved += below
        else:
            touched += touched_bytes(each.width, each.own)
            moved.append((each, list(each.own)))
    whole: dict[Hashable, float] = {}
    again: dict[Hashable, float] = {}
    outer: list[tuple[Touch, _Steps]] = []
    for touch, steps in moved:
        digits = touch.strides.get(node.variable, ())
        every = steps + _taken(digits, node.trips) if digits else steps
        some = steps + _taken(digits, min(node.trips, _TO_MEET_AGAIN)) if digits else steps
        outer.append((touch, every))
        size, key = touched_bytes(touch.width, every), touch.buffer
        whole[key] = max(whole.get(key, 0.0), size)
        again[key] = max(again.get(key, 0.0), size if some == every else touched_bytes(touch.width, some))
    return _Sized(node.trips, node.weight, sum(whole.values()), sum(again.values()), touched, inside), outer


def _taken(digits: Sequence[tuple[float, int]], trips: float) -> _Steps:
    """The steps that some iterations of a loop take, given the digits of its variable."""
    steps: _Steps = []
    for size, step in digits:
        taken = min(size, trips)
        if taken > 1 and step:
            steps.append((taken, step))
        trips = max(1.0, trips / size)
    return steps


def _working_sets(node: _Sized) -> list[float]:
    found = [node.again]
    for inner in node.inside:
        found += _working_sets(inner)
    return found


def _moved(node: _Sized, capacity: float) -> float:
    """The bytes that a cache of this capacity loads in all iterations of a loop."""
    if node.again <= capacity:
        return node.whole * node.weight
    inner = sum(_moved(each, capacity) for each in node.inside)
    return max(node.whole, node.trips * (inner + node.touched)) * node.weight


def touched_bytes(width: float, digits: Sequence[tuple[float, int]]) -> float:
    """Bytes of the lines that accesses of `width` bytes touch, given (trips, stride in bytes) of what moves them."""
    run, count = float(width), 1.0
    for trips, stride in sorted(digits, key=lambda digit: digit[1]):
        if stride <= run + LINE:
            run += stride * (trips - 1)
        else:
            count *= trips
    return count * max(LINE, -(-run // LINE) * LINE)


__all__ = ["LINE", "Node", "Touch", "reuse_of", "touched_bytes"]
