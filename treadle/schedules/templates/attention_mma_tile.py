"""The tiles of attention on tensor cores: what a choice of knobs implies for heads of given sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import VectorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import Space, Swizzle, swizzle_of_rows
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.matmul_mma_tile import CHUNK_BYTES, PRODUCT_M

ELEMENT_BYTES = 2
CHUNK = CHUNK_BYTES // ELEMENT_BYTES
"""Elements that a thread copies at a time, and of a row of the matrices that a warp loads."""
STEP = 16
"""Terms of a tile product, and columns of the two of them whose operand B is loaded at once."""


@dataclass(frozen=True)
class HeadTile:
    """Lines of a head in shared memory: queries, keys or values, or rows of the result.

    lines: how many; size: elements of a line that there are; extent: with the zeros that fill the last tile product
    """

    lines: int
    size: int
    extent: int

    @property
    def chunks(self) -> int:
        """Chunks of a line."""
        return self.extent // CHUNK

    @property
    def bytes(self) -> int:
        """Bytes of all lines."""
        return self.lines * self.extent * ELEMENT_BYTES

    @property
    def swizzle(self) -> Swizzle:
        """The permutation of chunks under which neither copies nor loads of fragments meet in a bank."""
        return swizzle_of_rows(self.extent * ELEMENT_BYTES, ELEMENT_BYTES)

    def lines_at_once(self, workers: int) -> int:
        """Lines of which so many workers take a chunk each."""
        return min(self.lines, workers // self.chunks)


@dataclass(frozen=True)
class AttentionMmaTile:
    """A block's tiles: `rows` queries, of which each warp takes a part of its own, and `stages` times `columns` keys
    with their values. `parts` warps share rows, each with a part of a tile's keys.

    size: of a query and a key (D); width: of a value (E)
    """

    rows: int
    columns: int
    warps: int
    parts: int
    stages: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionMmaTile:
        """The tiles that a choice of knobs means."""
        names = ("rows", "columns", "warps", "parts", "stages")
        rows, columns, warps, parts, stages = (number(choices, name) for name in names)
        return AttentionMmaTile(rows, columns, warps, parts, stages, size, width)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps * self.parts

    @property
    def own_columns(self) -> int:
        """Keys of a tile that a warp takes."""
        return self.columns // self.parts

    @property
    def slabs(self) -> int:
        """Tile products of a warp that lie below one another."""
        return self.rows // PRODUCT_M // self.warps

    @property
    def padded_size(self) -> int:
        """Elements of a query and a key, with zeros up to whole tile products."""
        return -(-self.size // STEP) * STEP

    @property
    def padded_width(self) -> int:
        """The same of a value."""
        return -(-self.width // STEP) * STEP

    @property
    def queries(self) -> HeadTile:
        """The block's queries."""
        return HeadTile(self.rows, self.size, self.padded_size)

    @property
    def keys(self) -> HeadTile:
        """The keys of a stage."""
        return HeadTile(self.columns, self.size, self.padded_size)

    @property
    def values(self) -> HeadTile:
        """The values of a stage."""
        return HeadTile(self.columns, self.width, self.padded_width)

    @property
    def result(self) -> HeadTile:
        """The block's rows of the result."""
        return HeadTile(self.rows, self.width, self.padded_width)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block. The result takes the place of the queries; parts of it and of its sums are
        added up beside it."""
        outer = max(self.queries.bytes, self.result.bytes)
        parts = (self.parts - 1) * self.padded_width + 8 * self.parts if self.parts > 1 else 0
        return outer + self.stages * (self.keys.bytes + self.values.bytes) + 4 * self.rows * parts

    @property
    def registers(self) -> int:
        """Registers of a thread that hold matrices: its queries, its part of the result, and scores; and where the
        swizzled fragments of each 16 columns of keys and of values begin."""
        matrices = self.slabs * (self.padded_size // 4 + self.padded_width // 2 + self.own_columns // 2)
        return matrices + (self.padded_size + self.padded_width) // STEP


# Adds up what the warps of a block computed of the same rows from different keys.

Weight = Callable[[Scalar, Scalar], Scalar]
"""The weight of a score relative to another one."""


@dataclass(frozen=True)
class Sums:
    """A lane's registers: results `[slabs, columns / 16, 2]` of tile products, and of its rows `[slabs, 2]` the largest
    score and its share of the sum of the weights relative to it."""

    acc: SSAValue
    largest: SSAValue
    total: SSAValue


def finite(b: KernelBuilder, largest: Scalar) -> Scalar:
    """What scores are relative to: before the first visible key 0, since -inf - -inf would be NaN, and stay it."""
    return b.select(b.binary("eq", largest, b.constant(-inf, f32)), b.constant(0, f32), largest)


def scale(b: KernelBuilder, acc: SSAValue, type: VectorType, extents: tuple[int, ...], factors: SSAValue) -> None:
    """Multiplies each result by the factor `[slabs, 2]` of its row."""
    with b.tasks(["r", "p", "q"], repeat(*extents), unroll=True) as where:
        scaled = b.alloc("scaled", type.get_shape(), f32)
        with b.tasks(["h", "c"], repeat(*type.get_shape()), unroll=True) as (h, c):
            value = b.extract(b.load(acc, where), [h, c], f32)
            b.store(b.mul(value, b.load(factors, [where[0], h])), scaled, [h, c])
        b.store(b.load_vector(scaled, type), acc, where)


def merge(b: KernelBuilder, tile: AttentionMmaTile, part: Index, sums: Sums, type: VectorType, weight: Weight) -> None:
    """Gives the first of the warps that share rows the sums of all of them.

    Lanes of the same number have the same elements in every warp, so that each writes and reads words of its own.
    """
    lane = b.thread % (WARP * tile.warps)
    rows, lanes = (tile.slabs, type.get_shape()[0]), WARP * tile.warps
    largest, total = (b.alloc(name, [tile.parts, *rows, lanes], f32, Space.SHARED) for name in ("peaks", "totals"))
    with b.tasks(["r", "h"], repeat(*rows), unroll=True) as (r, h):
        b.store(b.load(sums.largest, [r, h]), largest, [part, r, h, lane])
        b.store(b.load(sums.total, [r, h]), total, [part, r, h, lane])
    b.barrier()
    factors = b.alloc("factors", rows, f32)
    with b.tasks(["r", "h"], repeat(*rows), unroll=True) as (r, h):
        peak = b.alloc("peak", [1], f32)
        b.store(b.load(sums.largest, [r, h]), peak, [0])
        with b.loop("s", tile.parts, unroll=True) as s:
            b.store(b.binary("max", b.load(peak, [0]), b.load(largest, [s, r, h, lane])), peak, [0])
        base = finite(b, b.load(peak, [0]))
        b.store(weight(b.load(sums.largest, [r, h]), base), factors, [r, h])
        b.store(b.constant(0, f32), sums.total, [r, h])
        with b.loop("s", tile.parts, unroll=True) as s:
            share = b.mul(b.load(total, [s, r, h, lane]), weight(b.load(largest, [s, r, h, lane]), base))
            b.store(b.add(b.load(sums.total, [r, h]), share), sums.total, [r, h])
    extents = (tile.slabs, tile.padded_width // 16, 2)
    scale(b, sums.acc, type, extents, factors)
    _add_up(b, tile, part, lane, sums.acc, type, extents)


def _add_up(
    b: KernelBuilder,
    tile: AttentionMmaTile,
    part: Index,
    lane: Index,
    acc: SSAValue,
    type: VectorType,
    extents: tuple[int, ...],
) -> None:
    """Adds the results of the other warps to those of the first."""
    height, width = type.get_shape()
    shape = [tile.parts - 1, *extents, height, WARP * tile.warps, width]
    partial = b.alloc("partial", shape, f32, Space.SHARED)
    with (
        b.when(part > 0),
        b.tasks(["r", "p", "q", "h"], repeat(*extents, height), unroll=True) as (r, p, q, h),
        b.loop("c", width, unroll=True, vector=True) as c,
    ):
        value = b.extract(b.load(acc, [r, p, q]), [h, c], f32)
        b.store(value, partial, [part - 1, r, p, q, h, lane, c])
    b.barrier()
    with (
        b.when(part.equals(0)),
        b.tasks(["s", "r", "p", "q"], repeat(tile.parts - 1, *extents), unroll=True) as (s, *where),
    ):
        added = b.alloc("sum", type.get_shape(), f32)
        with b.loop("h", height, unroll=True) as h, b.loop("c", width, unroll=True, vector=True) as c:
            value = b.extract(b.load(acc, where), [h, c], f32)
            b.store(b.add(value, b.load(partial, [s, *where, h, lane, c])), added, [h, c])
        b.store(b.load_vector(added, type), acc, where)
