"""The tiles of the CUDA-core product: what a choice of knobs implies, and how threads fill a tile together."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, f32

from treadle.dialects.graph import ComputeOp, FusedOp, MatmulOp
from treadle.dialects.loop.tiles import WARP
from treadle.dialects.task import Mapping, repeat, spatial
from treadle.schedules.gpu_work import OTHER_REGISTERS, Addresses, GpuWork, Traffic, tensor_bytes
from treadle.schedules.split_k import shared_out, tiles_of
from treadle.schedules.template import Choices, number

# What the kernels of both products on GPUs have in common as work: which of them are plain, and their tensors.


def reads_only_global_operands(anchor: MatmulOp, *, b_transposed: bool = False) -> bool:
    """Whether no operand is computed in the anchor's group, so that it lies in memory row by row, and nothing follows
    the product. `b_transposed`: the right one is the transpose of a matrix that does."""
    group, right = anchor.parent_op(), anchor.b.owner
    if not isinstance(group, FusedOp):
        return not b_transposed
    inside = [operand for operand in (anchor.a, anchor.b) if operand.owner.parent_op() is group]
    alone = len(list(group.body.block.ops)) == 2 + b_transposed
    if not b_transposed:
        return alone and not inside
    return alone and inside == [anchor.b] and isinstance(right, ComputeOp) and _is_transpose(right)


def _is_transpose(compute: ComputeOp) -> bool:
    """Whether a definition exchanges the last two dimensions of a tensor, all of it, and does nothing else."""
    if len(list(compute.body.block.ops)) != 2 or len(compute.reads()) != 1:
        return False
    *batch, row, column = compute.body.block.args
    (read,) = compute.reads()
    assert isinstance(read.source.type, TensorType)
    *_, rows, columns = read.source.type.get_shape()
    return list(read.indices) == [*batch, column, row] and compute.shape[-2:] == (columns, rows)


def bytes_of(anchor: MatmulOp, tiles: int, split_k: int, sums: int) -> int:
    """Bytes of a product's tensors and, where each of its tiles has several blocks, of their sums and the counters."""
    found = sum(map(tensor_bytes, (anchor.a, anchor.b, anchor.result)))
    return found + (tiles * (split_k * sums + 1) * 4 if split_k > 1 else 0)


_LANES = (4, 8)
"""How the lanes of a warp lie over a warp's tile."""
_PADDING = 4
"""Elements after each row of a tile that is transposed on its way into shared memory. A row of a multiple of 8 elements
then begins at an odd multiple of 4, so that the lanes that store one column of 8 rows meet in no bank; 16 bytes stay
aligned."""
_SECTOR = 8
"""Elements of 4 bytes that global memory moves at once."""
_SOME = 32
"""Accumulators of a thread from which `__launch_bounds__` names a minimum of blocks per multiprocessor."""


@dataclass(frozen=True)
class CooperativeCopy:
    """How all threads of a block fill a tile of `rows` lines whose elements are consecutive in global memory.

    A thread takes `vector` neighbours at once. A warp takes whole lines where these stay lines in shared memory,
    else one sector of each of many lines, whose elements it stores side by side.
    """

    high: int
    wide: int
    warps: tuple[int, int]
    pieces: tuple[int, int]
    vector: int

    @property
    def mapping(self) -> Mapping:
        """The tasks: line and element."""
        (warp_rows, warp_columns), (rows, columns) = self.warps, self.pieces
        outer = repeat(rows // warp_rows, columns // warp_columns) * spatial(*self.warps)
        return outer * spatial(self.high, self.wide) * repeat(1, self.vector)

    @property
    def per_thread(self) -> int:
        """Elements that a thread copies."""
        return self.pieces[0] * self.pieces[1] * self.vector // (self.warps[0] * self.warps[1])

    @property
    def strides(self) -> tuple[int, int, int]:
        """Lines and elements from one of a thread's vectors to the next, and its vectors of a line."""
        across = self.warps[1] * self.wide * self.vector
        return self.warps[0] * self.high, across, self.pieces[1] // self.warps[1]

    @staticmethod
    def of(rows: int, columns: int, threads: int, most: int, transposed: bool) -> CooperativeCopy | None:
        """The filling with the longest vectors, at most `most`; None where the threads do not share the tile evenly.

        All extents are powers of two.
        """
        vectors = (v for v in (4, 2, 1) if v <= most)
        found = (_filling(rows, columns, threads // WARP, v, transposed) for v in vectors)
        return next((filling for filling in found if filling is not None), None)


def _filling(rows: int, columns: int, warps: int, vector: int, transposed: bool) -> CooperativeCopy | None:
    wide = _SECTOR // vector if transposed else min(columns // vector, WARP)
    high = min(WARP // max(wide, 1), rows)
    wide = WARP // high
    if wide * vector > columns or columns % (wide * vector) or rows % high:
        return None
    pieces = rows // high, columns // (wide * vector)
    warp_columns = min(pieces[1], warps)
    warp_rows = warps // warp_columns
    if pieces[0] % warp_rows:
        return None
    return CooperativeCopy(high, wide, (warp_rows, warp_columns), pieces, vector)


class SimtTile:
    """The extents that a choice of knobs implies: a block's tile is `m x n` of C and `block_k` of K."""

    lanes: ClassVar[tuple[int, int]] = _LANES

    def __init__(self, choices: Choices):
        self.warps, self.repeats, self.thread = (_pair(choices, k) for k in ("warps", "repeats", "thread"))
        self.block_k = number(choices, "block_k")
        self.mapping: Mapping = spatial(*self.warps) * repeat(*self.repeats) * spatial(*_LANES) * repeat(*self.thread)
        self.m, self.n = self.mapping.shape
        self.threads = self.mapping.workers
        self.outputs = self.m * self.n // self.threads
        self.a_transposed, self.b_transposed = choices["a_order"] == "k", choices["b_order"] == "k"
        self.a_filling = self._filling(self.m, self.a_transposed, number(choices, "a_vector"))
        self.b_filling = self._filling(self.n, self.b_transposed, number(choices, "b_vector"))
        # Without a minimum, ptxas spills a few registers for the sake of one block more.
        self.min_blocks = number(choices, "min_blocks_per_sm") if self.outputs >= _SOME else None

    def _filling(self, extent: int, transposed: bool, most: int) -> CooperativeCopy | None:
        """The tile of A or B as lines of K if it is transposed, else as lines of M or N."""
        rows, columns = (extent, self.block_k) if transposed else (self.block_k, extent)
        return CooperativeCopy.of(rows, columns, self.threads, most, transposed)

    @property
    def row_of_a(self) -> int:
        """Elements of a row of A's tile in shared memory, which holds K by M."""
        return self.m + (_PADDING if self.a_transposed else 0)

    @property
    def row_of_b(self) -> int:
        """Elements of a row of B's tile in shared memory, which holds K by N."""
        return self.n + (_PADDING if self.b_transposed else 0)

    @property
    def shared_elements(self) -> int:
        """Elements of two tiles of A and two of B."""
        return 2 * self.block_k * (self.row_of_a + self.row_of_b)


def _pair(choices: Choices, name: str) -> tuple[int, int]:
    value = choices[name]
    assert isinstance(value, tuple) and len(value) == 2
    return value[0], value[1]


# The work of a CUDA-core product from its tile alone: what `count_gpu_work` finds in its kernel.

_SIZE = 4
"""Bytes of an element."""


def simt_work(anchor: MatmulOp, tile: SimtTile, split_k: int) -> GpuWork | None:
    """The work of a product of f32 by itself, with a loop of at least two steps, at least one whole tile
    and no step beyond the end; None for others."""
    slices, (m, n), k = shared_out(anchor, split_k, tile.block_k), anchor.shape[-2:], anchor.reduction_extent
    a, b = tile.a_filling, tile.b_filling
    plain = anchor.type.get_element_type() == f32 and reads_only_global_operands(anchor)
    if not plain or a is None or b is None or not tile.a_transposed or tile.b_transposed:
        return None
    if m < tile.m or n < tile.n or slices.each < 3 or slices.covered != k or k % a.vector or n % b.vector:
        return None
    steps, part = slices.each, 1 / slices.number
    traffic = Traffic(tile.threads)
    line, element = _places(a, traffic)
    traffic.reach((line * k + element) * _SIZE, a.vector * _SIZE, steps * a.per_thread / a.vector)
    traffic.store((element * tile.row_of_a + line) * _SIZE, _SIZE, steps * a.per_thread)
    line, element = _places(b, traffic)
    traffic.reach((line * n + element) * _SIZE, b.vector * _SIZE, steps * b.per_thread / b.vector)
    traffic.store((line * tile.row_of_b + element) * _SIZE, b.vector * _SIZE, steps * b.per_thread / b.vector)
    row, column = (_line(tile, axis, traffic) for axis in (0, 1))
    for axis, place in enumerate((row, column)):
        traffic.load(place * _SIZE, tile.thread[axis] * _SIZE, steps * tile.block_k * tile.repeats[axis])
    rows, columns = (tile.repeats[axis] * tile.thread[axis] for axis in (0, 1))
    vector = gcd(tile.thread[1], n)
    traffic.reach((row * n + column) * _SIZE, vector * _SIZE, part * rows * columns / vector)
    operations = steps * tile.block_k * tile.outputs
    if slices.number > 1:
        traffic.add_up(tile.outputs)
        operations += tile.outputs
    tiles = tiles_of(anchor, tile.m, tile.n)
    return GpuWork(
        blocks=tiles * slices.number,
        threads=tile.threads,
        registers=tile.outputs + a.per_thread + b.per_thread + rows + columns + OTHER_REGISTERS,
        min_blocks=tile.min_blocks or 1,
        shared_bytes=tile.shared_elements * _SIZE,
        operations=operations * tile.threads,
        tensor_flops=0.0,
        tensor_bytes=0,
        sectors=traffic.sectors,
        shared_loads=traffic.shared_loads,
        shared_stores=traffic.shared_stores,
        accesses=traffic.accesses,
        steps=steps - 1,
        ahead=1,
        round_trips=1 if slices.number == 1 else 2,
        barriers=steps,
        bytes=bytes_of(anchor, tiles, slices.number, tile.m * tile.n),
    )


def _places(filling: CooperativeCopy, traffic: Traffic) -> tuple[Addresses, Addresses]:
    """The first line and element that each thread copies."""
    lane, warp = traffic.thread % WARP, traffic.thread // WARP
    _, across = filling.warps
    line = warp // across * filling.high + lane // filling.wide
    return line, (warp % across * filling.wide + lane % filling.wide) * filling.vector


def _line(tile: SimtTile, axis: int, traffic: Traffic) -> Addresses:
    """The first row or column of each thread."""
    lane, warp = traffic.thread % WARP, traffic.thread // WARP
    mine = lane // tile.lanes[1] if axis == 0 else lane % tile.lanes[1]
    of_warp = warp // tile.warps[1] if axis == 0 else warp % tile.warps[1]
    return (of_warp * tile.repeats[axis] * tile.lanes[axis] + mine) * tile.thread[axis]
