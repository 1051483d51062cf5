"""The features of a scheduled kernel that cost models read: operations, memory accesses, cache traffic."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.schedules.register_tile import panel_columns
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.matmul_cpu import right_strides
from treadle.target import Target

REGISTER_BYTES = 2048
"""Bytes of all vector registers with AVX-512: smaller local buffers are assumed to be in registers."""


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


# The work of a product's kernel on a CPU by its choices, without the kernel.

_IDLE_CYCLES = 20.0
"""Of a block that finds that nobody needs it. DietCode's product NT at one row of 128, panels of one vector, two cores
of a Xeon, the least of 12 rounds: 0.78 ms with chunks of one row, 0.37 with chunks of 12, and 0.28 with ones of 126;
that is 15 and 34 cycles for each of 196 000 and 15 000 such blocks."""


@dataclass(frozen=True)
class _Product:
    """A product and the choices of `matmul_cpu`."""

    rows: int
    depth: int
    columns: int
    batch: int
    tile: int
    vectors: int
    chunk: int
    is_packed: bool
    lanes: int
    width: int
    """Bytes of an element."""
    right_loads: float
    """Loads that a vector of the right operand takes where it lies."""

    @property
    def panels(self) -> int:
        return ceil(self.columns / (self.vectors * self.lanes))

    @property
    def blocks(self) -> int:
        return self.panels * ceil(self.rows / self.chunk) * self.batch

    @property
    def mean_vectors(self) -> float:
        """Vectors of a panel: the last one may have fewer."""
        whole, rest = divmod(self.columns, self.vectors * self.lanes)
        return (whole * self.vectors + ceil(rest / self.lanes)) / self.panels

    def tiles(self, heights: Sequence[int]) -> Iterator[tuple[int, int]]:
        """How many tiles have how many rows: the last one has the least of `heights` that suffices, or all."""
        whole, rest = divmod(self.rows, self.tile)
        if whole:
            yield whole, self.tile
        if rest:
            yield 1, min((h for h in (*heights, self.tile) if rest <= h <= self.tile), default=self.tile)


def product_work(
    anchor: MatmulOp,
    choices: Choices,
    target: Target,
    heights: Sequence[int] = (),
    grid: int | None = None,
    loads: float | None = None,
) -> Work:
    """What `count_work` finds in the kernel that `matmul_cpu` builds, up to addresses and what follows the product.

    heights: rows of the tiles that `loop-tail-tiles` writes beside a taller one, if the product's rows are those
        that somebody needs of more. The choices may be those of a larger product: the extents are the anchor's.
    grid: blocks of the larger product's kernel, of which those that nobody needs still take a few cycles
    loads: what `right_loads` says of the larger product, whose memory it is
    """
    product = _product(anchor, choices, target, right_loads(anchor, choices, target) if loads is None else loads)
    tiles = list(product.tiles(heights))
    share = max(1.0, product.blocks / target.cores)
    per_block = product.panels * product.batch / product.blocks
    bodies = [body for count, rows in tiles for body in _tile_bodies(product, rows, count * per_block)]
    if product.is_packed:
        bodies.append(Body(product.depth * product.mean_vectors, 0.0, product.right_loads, 1.0))
    idle = 0 if grid is None else max(0, grid - product.blocks)
    if idle:
        bodies.append(Body(_IDLE_CYCLES * idle / product.blocks))
    return Work(product.blocks, 1, tuple(bodies), _reuse(product, tiles, share), share)


def blocks_of(anchor: MatmulOp, choices: Choices, target: Target) -> int:
    """The blocks of a kernel."""
    return _product(anchor, choices, target, 1.0).blocks


def right_loads(anchor: MatmulOp, choices: Choices, target: Target) -> float:
    """Loads that a vector of the right operand takes where it lies."""
    _, along_n = right_strides(anchor, panel_columns(target, number(choices, "vectors")))
    return 1.0 if along_n in (0, 1) else strided_loads(target.lanes, along_n or target.lanes)


def _product(anchor: MatmulOp, choices: Choices, target: Target, loads: float) -> _Product:
    *batch, rows, columns = anchor.shape
    return _Product(
        rows, anchor.reduction_extent, columns, prod(batch), number(choices, "rows"), number(choices, "vectors"),
        number(choices, "chunk"), bool(choices["pack"]), target.lanes, byte_width(anchor.type.get_element_type()),
        loads,
    )  # fmt: skip


def _tile_bodies(product: _Product, rows: int, times: float) -> Iterator[Body]:
    """The loop over K of tiles of some rows, and what is before and after it; `times` in a block."""
    vectors = product.mean_vectors
    loads = vectors * (1.0 if product.is_packed else product.right_loads)
    yield Body(times * product.depth, rows * vectors, loads + rows, 0.0, 1.0)
    yield Body(times, 0.0, 0.0, rows * vectors)


def _reuse(product: _Product, tiles: Sequence[tuple[int, int]], share: float) -> tuple[Reuse, ...]:
    """The traffic of a worker's blocks: with no cache at all; with one that has a panel and two tiles' rows of the left
    operand; with one that has a block's rows and two panels, since blocks of one chunk follow one another; and with one
    that has all panels, which chunk after chunk reads."""
    per_block = product.panels * product.batch / product.blocks
    panel = product.depth * product.vectors * product.lanes * product.width
    row = product.depth * product.width
    count = sum(n for n, _ in tiles) * per_block
    rows = sum(n * r for n, r in tiles) * per_block
    result = rows * product.vectors * product.lanes * product.width
    left = rows * row
    packed = panel if product.is_packed else 0
    found = [Reuse(0.0, share * (count * panel + left + result + packed))]
    found.append(Reuse(float(panel + 2 * product.tile * row), share * (panel + left + result + packed)))
    chunks = max(1.0, share / product.panels)
    found.append(Reuse(2 * panel + left, share * (panel + result + packed) + chunks * left))
    batches = max(1.0, share * product.batch / product.blocks)
    all_panels = min(share, batches * product.panels) * panel
    found.append(Reuse(product.panels * panel + 2 * left, all_panels + share * (result + packed) + chunks * left))
    return tuple(sorted(found, key=lambda each: each.capacity))


# The memory traffic of a loop nest as a function of the cache's capacity.
#
# When the loops' variables are split into digits, so that no quotients and remainders are left, addresses are linear in
# them; the footprint of loops then follows from strides and trip counts alone. A cache that has room for two iterations
# of a loop loads each byte of the whole loop once; a smaller one loads the footprints of the inner loops again in each
# iteration. Source: M. Wolf and M. Lam, A Data Locality Optimizing Algorithm (PLDI 1991), section 3.

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
