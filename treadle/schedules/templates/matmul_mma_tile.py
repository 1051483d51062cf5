"""The extents of a product on tensor cores: tiles of a block, of a warp and of one instruction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.dialects.loop.tiles import PRODUCT_K, WARP
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.schedules.access_analysis import has_contiguous_rows
from treadle.schedules.gpu_work import OTHER_REGISTERS, Addresses, GpuWork, Traffic
from treadle.schedules.split_k import shared_out, tiles_of
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.simt_tile import bytes_of, reads_only_global_operands

CHUNK_BYTES = 16
"""What one thread copies at a time: the widest asynchronous copy, and a row of the matrices that a warp loads."""
PRODUCT_M, PRODUCT_N = 16, 8
FRAGMENT: Mapping = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
"""Which elements of C's 16 x 8 tile a lane holds."""


@dataclass(frozen=True)
class SharedTile:
    """An operand's tile in shared memory: rows of consecutive elements, mostly as they lie in global memory.

    along_k: whether a row runs along K; rows, columns: the extents; element_bytes: of one element
    """

    along_k: bool
    rows: int
    columns: int
    element_bytes: int

    @property
    def chunk(self) -> int:
        """Elements that one thread copies at a time."""
        return CHUNK_BYTES // self.element_bytes

    @property
    def chunks(self) -> int:
        """Chunks of the tile."""
        return self.rows * self.columns // self.chunk

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.rows * self.columns * self.element_bytes

    @property
    def loads_matrices(self) -> bool:
        """Whether a warp loads whole matrices, else each lane its elements: those of 32 bits are not transposed."""
        return self.along_k or self.element_bytes == 2

    @property
    def swizzle(self) -> Swizzle:
        """The permutation of chunks under which neither copies nor loads of fragments meet in a bank."""
        # A lane by lane load reads 8 elements of 32 bits from each of 4 rows at once: these stay together.
        chunk = CHUNK_BYTES if self.loads_matrices else 2 * CHUNK_BYTES
        return swizzle_of_rows(self.columns * self.element_bytes, self.element_bytes, chunk)

    def tasks(self, threads: int) -> Mapping:
        """Rows and chunks of rows, consecutive threads on consecutive chunks; the first threads only if there are
        fewer chunks than threads."""
        wide = self.columns // self.chunk
        high = min(self.rows, threads // wide)
        return repeat(self.rows // high, 1) * spatial(high, wide)


@dataclass(frozen=True)
class MmaTile:
    """The extents that a choice of knobs implies for operands of an element type.

    m, n: of the block's tile; block_k: of the steps along K; warps: along M and N; stages: tiles in shared memory;
    group: rows of blocks that run next to one another
    """

    m: int
    n: int
    block_k: int
    warps: tuple[int, int]
    stages: int
    group: int
    a: SharedTile
    b: SharedTile
    product_k: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * prod(self.warps)

    @property
    def warp(self) -> tuple[int, int]:
        """Rows and columns of a warp's tile."""
        return self.m // self.warps[0], self.n // self.warps[1]

    @property
    def accumulators(self) -> int:
        """Elements of C that a thread holds."""
        return self.m * self.n // self.threads

    @property
    def staged_bytes(self) -> int:
        """Shared memory through which 16-bit elements of C reach threads that store 16 bytes: a row of fragments."""
        return PRODUCT_M * self.warps[0] * self.n * self.a.element_bytes if self.a.element_bytes == 2 else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * (self.a.bytes + self.b.bytes) + self.staged_bytes

    @property
    def registers(self) -> int:
        """Registers of a thread that hold C, and one step's fragments of A and B."""
        rows, columns = self.warp
        return self.accumulators + rows // PRODUCT_M * 4 + columns // PRODUCT_N * 2


def mma_tile(anchor: MatmulOp, choices: Choices) -> MmaTile:
    """The extents for an anchor; its operands' tiles lie as the operands do, those of bytes along K, since matrices of
    bytes are not transposed while they are loaded."""
    assert isinstance(anchor.a.type, TensorType)
    element = anchor.a.type.get_element_type()
    block, warps = choices["block"], choices["warps"]
    assert isinstance(block, tuple) and isinstance(warps, tuple)
    m, n = (int(extent) for extent in block)
    along_m, along_n = (int(extent) for extent in warps)
    block_k, size = number(choices, "block_k"), byte_width(element)
    a_along_k = size == 1 or has_contiguous_rows(anchor, anchor.a)
    b_along_k = size == 1 or not has_contiguous_rows(anchor, anchor.b)
    return MmaTile(
        m, n, block_k, (along_m, along_n), number(choices, "stages"), number(choices, "group"),
        SharedTile(a_along_k, *((m, block_k) if a_along_k else (block_k, m)), size),
        SharedTile(b_along_k, *((n, block_k) if b_along_k else (block_k, n)), size),
        PRODUCT_K[element],
    )  # fmt: skip


# The work of a product on tensor cores from its tile alone: what `count_gpu_work` finds in its kernel.

_PAIR = 2
_FRAGMENT_REGISTERS = 4
"""Of 16 rows of A, or of two times 8 columns of B."""
_ROUNDING = 2
"""Instructions that round a float to tf32."""


def mma_work(anchor: MatmulOp, tile: MmaTile, split_k: int) -> GpuWork | None:
    """The work of a product by itself whose rows begin at multiples of 16 bytes, of at least one whole tile and without
    a step beyond the end; None for others. Of bytes B is a transpose, whose rows are those of its tile."""
    slices, (m, n), k = shared_out(anchor, split_k, tile.block_k), anchor.shape[-2:], anchor.reduction_extent
    size, chunk = tile.a.element_bytes, tile.a.chunk
    of_bytes = size == 1
    aligned = not (k % chunk or n % chunk) and tile.a.along_k and tile.b.along_k == of_bytes
    if (
        m < tile.m
        or n < tile.n
        or not aligned
        or slices.covered != k
        or not reads_only_global_operands(anchor, b_transposed=of_bytes)
    ):
        return None
    traffic, part = Traffic(tile.threads), 1 / slices.number
    rows, pairs = tile.warp[0] // PRODUCT_M, tile.warp[1] // PRODUCT_N // _PAIR
    for shared, stride in ((tile.a, k), (tile.b, k if of_bytes else n)):
        _copies(shared, stride, traffic, slices.each)
    products = slices.each * (tile.block_k // tile.product_k)
    _fragments(tile, traffic, products * rows, products * pairs)
    _stores(tile, n, traffic, part)
    if slices.number > 1:
        traffic.add_up(tile.accumulators)
    fragments = (rows + pairs) * _FRAGMENT_REGISTERS
    operations = products * fragments * _ROUNDING if size == 4 else part * tile.accumulators
    operations += tile.accumulators if slices.number > 1 else 0
    by_lanes = 0 if tile.b.loads_matrices else _FRAGMENT_REGISTERS
    tiles = tiles_of(anchor, tile.m, tile.n)
    return GpuWork(
        blocks=tiles * slices.number,
        threads=tile.threads,
        registers=tile.accumulators + fragments + by_lanes + OTHER_REGISTERS,
        min_blocks=1,
        shared_bytes=tile.shared_bytes,
        operations=0.0 if of_bytes else operations * tile.threads,
        tensor_flops=2.0 * tile.m * tile.n * tile.product_k * products,
        tensor_bytes=size,
        sectors=traffic.sectors,
        shared_loads=traffic.shared_loads,
        shared_stores=traffic.shared_stores,
        accesses=traffic.accesses,
        steps=slices.each,
        ahead=tile.stages - 1,
        round_trips=0 if slices.number == 1 else 1,
        barriers=slices.each + (part * 2 * rows if tile.staged_bytes else 0),
        bytes=bytes_of(anchor, tiles, slices.number, tile.m * tile.n),
    )


def _copies(shared: SharedTile, stride: int, traffic: Traffic, steps: float) -> None:
    """The copies of one operand, whose rows are `stride` elements apart."""
    wide, workers = shared.columns // shared.chunk, shared.tasks(traffic.threads).workers
    row, column = traffic.thread // wide, traffic.thread % wide * shared.chunk
    times = steps * shared.rows * wide / workers * (workers / traffic.threads)
    size = shared.element_bytes
    traffic.reach((row * stride + column) * size, CHUNK_BYTES, times)
    stored = row * shared.columns + _column(shared, row, column)
    traffic.store(stored * size, CHUNK_BYTES, times)


def _fragments(tile: MmaTile, traffic: Traffic, of_a: float, of_b: float) -> None:
    """The loads of fragments: whole matrices, or of untransposed 32-bit columns element by element."""
    lane, warp, half = traffic.thread % WARP, traffic.thread // WARP, tile.product_k // 2
    row, column = warp // tile.warps[1] * tile.warp[0], warp % tile.warps[1] * tile.warp[1]
    row, term = row + lane % 16, lane // 16 * half
    size = tile.a.element_bytes
    traffic.load((row * tile.a.columns + _column(tile.a, row, term)) * size, CHUNK_BYTES, of_a)
    if tile.b.along_k:
        term, column = lane // 8 % 2 * half, column + lane // 16 * PRODUCT_N + lane % 8
        traffic.load((column * tile.b.columns + _column(tile.b, column, term)) * size, CHUNK_BYTES, of_b)
        return
    if tile.b.loads_matrices:
        term, column = lane % 16, column + lane // 16 * PRODUCT_N
        traffic.load((term * tile.b.columns + _column(tile.b, term, column)) * size, CHUNK_BYTES, of_b)
        return
    term, column = lane % 4, column + lane // 4
    traffic.load((term * tile.b.columns + _column(tile.b, term, column)) * size, size, of_b * 4)


def _stores(tile: MmaTile, n: int, traffic: Traffic, part: float) -> None:
    """The stores of C: pairs of 32-bit elements, or chunks of 16-bit ones that pass through shared memory."""
    lane, warp = traffic.thread % WARP, traffic.thread // WARP
    row, column = warp // tile.warps[1] * tile.warp[0], warp % tile.warps[1] * tile.warp[1]
    (height, width), size = tile.warp, 2 if tile.staged_bytes else 4
    slabs = part * (height // PRODUCT_M)
    i, j = lane // 4, lane % 4 * 2
    if not tile.staged_bytes:
        traffic.reach(((row + i) * n + column + j) * size, 2 * size, slabs * 2 * (width // PRODUCT_N))
        return
    slab = SharedTile(True, PRODUCT_M, width, size)
    first = warp * PRODUCT_M * width
    traffic.store((first + i * width + _column(slab, i, j)) * size, 2 * size, slabs * 2 * (width // PRODUCT_N))
    wide = width // slab.chunk
    i, j = lane // wide, lane % wide * slab.chunk
    times = slabs * PRODUCT_M / (WARP // wide)
    traffic.load((first + i * width + _column(slab, i, j)) * size, CHUNK_BYTES, times)
    traffic.reach(((row + i) * n + column + j) * size, CHUNK_BYTES, times)


def _column(shared: SharedTile, row: Any, column: Any) -> Addresses:
    """Where the elements of some rows are stored."""
    return shared.swizzle.column(row, column)  # pyright: ignore[reportReturnType]
