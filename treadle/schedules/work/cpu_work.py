"""The features of a scheduled kernel that cost models read: operations, memory accesses, cache traffic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import VectorType

from treadle.index.positions import Position
from treadle.schedules.register_tile import sum_registers
from treadle.schedules.work.rules import (
    hoisted,
    split_loops,
    transposed_loads,
    unrolled_loops,
    vectorised,
    without_single_trips,
)
from treadle.schedules.work.tree import (
    Access,
    Branch,
    Buffer,
    Kernel,
    Loop,
    Node,
    Step,
    accesses_in,
    all_likely,
    finish,
)
from treadle.target import Target

MASK_OPERATIONS = 4.0
"""Operations on vectors that a masked access takes besides itself: two ends are broadcast and compared. GCC 12 writes
nine instructions for one, half of which need the ports of arithmetic on vectors."""


def masked_accesses(lanes: float, stride: float) -> float:
    """Accesses through masks that one of `lanes` elements takes: one, or one for each lane as in `strided_loads`."""
    return 1.0 if abs(stride) <= 2 else lanes


def strided_loads(lanes: float, stride: float) -> float:
    """Loads of a vector of elements that are `stride` elements apart, at least two, on a CPU: two vectors and a shuffle
    for every second element, as `treadle.h` has it, else one for each lane."""
    return 2.0 if abs(stride) == 2 and lanes > 2 else lanes


@dataclass(frozen=True)
class Body:
    """Straight-line code: the body of an innermost loop that is not unrolled, or the code outside of such loops.

    executions: of one block, on average over the blocks; the counts below are of one execution of one thread
    arithmetic: operations on floats or on vectors of them; a fused multiply-add counts one, a division or a function
        such as exp counts as the number of operations that take its time
    loads, stores: of memory; registers are not accessed
    chain: length of the longest sequence of dependent additions that is carried to the next execution
    masked: how many of the loads and stores are of the lanes of a mask, which compilers hoist out of no loop
    """

    executions: float
    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0
    masked: float = 0.0

    @property
    def operations(self) -> float:
        """Operations on vectors, those of masks included."""
        return self.arithmetic + MASK_OPERATIONS * self.masked


@dataclass(frozen=True)
class Reuse:
    """The traffic of a cache that is large enough for some reuse.

    capacity: bytes that the reuse needs; traffic: bytes that one worker's share of the blocks then moves into it
    """

    capacity: float
    traffic: float


@dataclass(frozen=True)
class Work:
    """The work of one kernel.

    blocks, threads: of the grid, and of a block
    bodies: the straight code of a block
    reuse: by ascending capacity; the first needs no cache, the last keeps everything
    share: blocks that one worker computes, for which `reuse` was counted
    """

    blocks: int
    threads: int
    bodies: tuple[Body, ...]
    reuse: tuple[Reuse, ...]
    share: float

    def traffic(self, capacity: float) -> float:
        """Bytes that one worker's share moves into a cache of `capacity` bytes."""
        moved = self.reuse[0].traffic
        for step in self.reuse:
            if step.capacity > capacity:
                break
            moved = min(moved, step.traffic)
        return moved


# The memory traffic of a loop nest as a function of the cache's capacity.
#
# When the loops' variables are split into digits, so that no quotients and remainders are left, addresses are linear in
# them; the footprint of loops then follows from strides and trip counts alone. A cache that has room for two iterations
# of a loop loads each byte of the whole loop once; a smaller one loads the footprints of the inner loops again in each
# iteration. Source: M. Wolf and M. Lam, A Data Locality Optimizing Algorithm (PLDI 1991), section 3.

LINE = 64
"""The bytes of a CPU's cache line."""
OPERATIONS_PER_CYCLE = 2
"""Operations on vectors that a core begins at once."""
_TO_MEET_AGAIN = 2.0
"""The number of iterations whose footprint a cache must have room for, so that data that iterations share is reused."""


@dataclass
class TouchNode:
    """A loop, with the inner loops and accesses of its body. `trips` may be a mean."""

    variable: Hashable
    trips: float
    inside: list[TouchNode | Touch] = field(default_factory=list["TouchNode | Touch"])
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


def reuse_of(root: TouchNode) -> tuple[Reuse, ...]:
    """The traffic for each capacity at which it falls: those of the loops' working sets."""
    sized, _ = _size(root)
    found: list[Reuse] = []
    for capacity in sorted({0.0, *_working_sets(sized)}):
        moved = _moved(sized, capacity)
        if not found or moved < found[-1].traffic:
            found.append(Reuse(capacity, moved))
    return tuple(found)


def _size(node: TouchNode) -> tuple[_Sized, list[tuple[Touch, _Steps]]]:
    """The node's sizes, and the accesses inside it, each with what moves it within the node."""
    inside: list[_Sized] = []
    moved: list[tuple[Touch, _Steps]] = []
    touched = 0.0
    for each in node.inside:
        if isinstance(each, TouchNode):
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


# Counts the tree of a kernel: the operations of its straight code, and its cache traffic.


def lower_for_cpu(kernel: Kernel, target: Target) -> None:
    """Does to a recorded tree what stage `loops` does to a kernel for a CPU."""
    kernel.inside = split_loops(kernel.inside)
    vectorised(kernel.inside, target.lanes)
    transposed_loads(kernel.inside, target.lanes)
    kernel.inside = hoisted(without_single_trips(kernel.inside))
    finish(kernel.inside)
    unrolled_loops(kernel.inside, target.vector_registers * target.lanes)


def count_on_cpu(kernel: Kernel, target: Target) -> Work:
    """The work of a tree as stage `loops` leaves it, whose blocks are distributed to the target's cores, each of which
    has a contiguous share.

    Local buffers of no more vectors than registers hold beside operands are taken to be in registers, unless some
    accesses are of vectors and some of elements, which compilers leave in memory; and where code is
    unrolled, what is accessed again is kept if it is no more. A tile of 16 rows by 2 vectors of AVX-512, of which
    GCC 12 stored 214 vectors in 256 products, took 2.3 times as long as one of 8 by 3 (2 cores, 2026-11-28).
    """
    share = max(1.0, kernel.grid / target.cores)
    counter = _CpuCounter(kernel, target)
    counter.body(kernel.inside, 1.0)
    root = TouchNode(kernel.block, share, counter.roots)
    return Work(kernel.grid, kernel.threads, tuple(counter.bodies), reuse_of(root), share)


@dataclass
class _Counts:
    """The counts of some code."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0
    masked: float = 0.0

    def add(self, other: _Counts, times: float) -> None:
        """Adds another code's counts, multiplied."""
        self.arithmetic += other.arithmetic * times
        self.loads += other.loads * times
        self.stores += other.stores * times
        self.masked += other.masked * times


class _CpuCounter:
    """Walks a tree once."""

    def __init__(self, kernel: Kernel, target: Target):
        self._registers, self._unit = sum_registers(target), target.unit
        self._register_bytes = self._registers * target.vector_bytes
        widths: dict[Buffer, set[bool]] = {}
        of_elements = (each for each in accesses_in(kernel.inside) if not isinstance(each.buffer.element, VectorType))
        for access in of_elements:
            widths.setdefault(access.buffer, set()).add(access.elements > 1)
        self._mixed = {buffer for buffer, found in widths.items() if len(found) > 1}
        self.bodies: list[Body] = []
        self.roots: list[TouchNode | Touch] = []
        self._block = kernel.block
        self._children = [self.roots]
        self._loops: list[Loop] = []

    def body(self, inside: Sequence[Node], executions: float) -> None:
        """Counts code as a body of its own, with its executions in a block of the grid."""
        counts = self._counts(inside, executions)
        if counts.arithmetic or counts.loads or counts.stores:
            self.bodies.append(Body(executions, **vars(counts)))

    def _counts(self, inside: Sequence[Node], executions: float) -> _Counts:
        counts = _Counts()
        for node in inside:
            if isinstance(node, Access):
                self._access(node, counts)
            elif isinstance(node, Step):
                counts.arithmetic += node.cost
                if node.tiles is not None:
                    rows, steps = node.tiles
                    counts.arithmetic += OPERATIONS_PER_CYCLE * self._unit.cycles(rows) * steps
            elif isinstance(node, Loop):
                self._loop(node, counts, executions)
            else:
                self._branch(node, counts, executions)
        return counts

    def _loop(self, loop: Loop, counts: _Counts, executions: float) -> None:
        touched = TouchNode(loop, loop.trips)
        self._children[-1].append(touched)
        self._children.append(touched.inside)
        self._loops.append(loop)
        if loop.is_unrolled:
            inner = self._counts(loop.inside, executions * loop.trips)
            counts.add(inner, loop.trips)
            counts.chain = max(counts.chain, inner.chain)
        else:
            self.body(loop.inside, executions * loop.trips)
        self._loops.pop()
        self._children.pop()

    def _branch(self, branch: Branch, counts: _Counts, executions: float) -> None:
        part = all_likely(branch.conditions)
        if part == 0:
            return
        touched = TouchNode(branch, 1.0, weight=part)
        self._children[-1].append(touched)
        self._children.append(touched.inside)
        inner = self._counts(branch.inside, executions * part)
        self._children.pop()
        counts.add(inner, part)
        counts.chain = max(counts.chain, inner.chain)

    def _access(self, access: Access, counts: _Counts) -> None:
        buffer, stride = access.buffer, abs(access.stride)
        if access.masked:
            counts.masked += masked_accesses(access.elements, stride)
        elif access.guarded and not access.is_store:
            counts.masked += 1  # its two operations are the comparison and the jump
        times = self._invariance(access.place)
        if self._is_in_registers(buffer):
            if access.adds_up:
                counts.chain = max(counts.chain, 1 / times)
            return
        elements = float(access.elements) if stride > 1 else 1.0
        if access.is_store:
            counts.stores += times * elements
        else:
            counts.loads += times * strided_loads(elements, stride)
        own = [(float(access.elements), buffer.bytes * stride)] if stride > 1 else []
        width = buffer.bytes * (access.elements if stride == 1 else 1)
        self._children[-1].append(Touch(buffer, width, own, self._strides(access.place, buffer.bytes)))

    def _is_in_registers(self, buffer: Buffer) -> bool:
        """Whether a buffer is small enough, and accessed by vectors alone, or by elements alone."""
        is_small = buffer.is_register and buffer.elements * buffer.bytes <= self._register_bytes
        return is_small and not buffer.has_masks and buffer not in self._mixed

    def _strides(self, place: Position, size: int) -> dict[Hashable, list[tuple[float, int]]]:
        """How the loops around and the blocks move an access, in bytes."""
        found: dict[Hashable, list[tuple[float, int]]] = {}
        for loop in self._loops:
            if loop.moves(place):
                found[loop] = [(trips, abs(step) * size) for trips, step in loop.steps(place)]
        if self._block in place.variables:
            steps = place.steps(self._block.digits())
            found[self._block] = [(float(count), abs(step) * size) for count, step in steps]
        return found

    def _invariance(self, place: Position) -> float:
        """What hoisting leaves of an access: it is out of the innermost unrolled loops along which it does not move, as
        far as registers hold what it touches inside of them."""
        still, held = list[float](), 1.0
        for loop in reversed(self._loops):
            if not loop.is_unrolled or held > self._registers:
                break
            if loop.moves(place):
                held *= loop.trips
            else:
                still.append(loop.trips)
        return 1.0 / prod(still)
