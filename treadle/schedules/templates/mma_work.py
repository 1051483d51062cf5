"""The work of a product on tensor cores from its tile alone: what `count_gpu_work` finds in its kernel."""

from __future__ import annotations

from typing import Any

from treadle.dialects.graph import MatmulOp
from treadle.dialects.loop.tiles import WARP
from treadle.schedules.gpu_traffic import Traffic
from treadle.schedules.gpu_work import OTHER_REGISTERS, Addresses, GpuWork
from treadle.schedules.split_k import shared_out, tiles_of
from treadle.schedules.templates.matmul_mma_tile import CHUNK_BYTES, PRODUCT_M, PRODUCT_N, MmaTile, SharedTile
from treadle.schedules.templates.product_work import bytes_of, comes_from_outside

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
        or not comes_from_outside(anchor, turned=of_bytes)
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


__all__ = ["mma_work"]
