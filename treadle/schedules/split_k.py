"""The grid of a product on a GPU: which tile a block computes, and split-k, the terms of a tile shared out to several
blocks, where tiles are too few.

Source: NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA": threadblock rasterization, parallelized reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod

from xdsl.dialects.builtin import TensorType, i32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import Space
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate
from treadle.schedules.reduction_end import ReductionEnd, steps_of
from treadle.schedules.template import Knob, check_limit

# Thread-block swizzle.


def block_coordinates(block: Index, rows: int, columns: int, group: int) -> tuple[Index, Index]:
    """The row and column of a block in a grid. Consecutive blocks go down `group` rows before they go right, so that
    those that run together share the tiles that they read; the last group may have fewer rows."""
    group = min(group, rows)
    if group == 1:
        return block // columns, block % columns

    def inside(position: Index, height: int, first: Index | int) -> tuple[Index, Index]:
        return position % height + first, position // height

    width, last = group * columns, rows % group
    inner = block % width
    row, column = inside(inner, group, (block // width) * group)
    if not last:
        return row, column
    full = block < (rows - last) * columns
    last_row, last_column = inside(inner, last, rows - last)
    return full.select(row, last_row), full.select(column, last_column)


# Split-k's reduction: each block of a tile stores its partial sums, and the last one to arrive adds them up.

_VECTOR_BYTES = 16


class PartialSums:
    """The accumulators of every block of a launch of `tiles` times `split_k` blocks, in device memory.

    Each of `threads` threads has `accumulators` elements. They are stored as vectors of 16 bytes, or shorter ones where
    these do not divide them, those of consecutive threads side by side: a thread reads what the threads of the same
    number wrote, whatever their coordinates in C. `kind` says how they are folded.
    """

    def __init__(
        self,
        b: KernelBuilder,
        tiles: int,
        split_k: int,
        threads: int,
        accumulators: int,
        element: Attribute,
        kind: str = "add",
    ):
        self._b, self._split_k, self._element, self._kind = b, split_k, element, kind
        self.lanes = gcd(_VECTOR_BYTES // byte_width(element), accumulators)
        """Elements of a vector."""
        self._vectors = accumulators // self.lanes
        shape = [tiles, split_k, self._vectors, threads, self.lanes]
        self._sums = b.alloc("partial_sums", shape, element, Space.DEVICE)
        self._counters = b.alloc("counters", [tiles], i32, Space.ZEROED)

    def keep(
        self,
        tile: Index,
        slice: Index,
        element: Callable[[Index, Index], Scalar],
        has_sums: Predicate | None = None,
    ) -> SSAValue:
        """Stores the calling thread's elements, given vector and lane; whether its block is the tile's last.

        has_sums: whether the thread is one of `threads`, where a block has others, too
        """
        b = self._b
        with (
            b.when(has_sums),
            b.tasks(["v"], repeat(self._vectors), unroll=True) as (v,),
            b.tasks(["e"], repeat(self.lanes), unroll=True, vector=True) as (e,),
        ):
            b.store(element(v, e), self._sums, [tile, slice, v, b.thread, e])
        last = b.arrive(self._counters, tile, self._split_k)
        last.name_hint = "last"
        return last

    def add_up(self, tile: Index, total: SSAValue) -> None:
        """Sets the elements of a register buffer to the sums over all slices, always in the slices' order."""
        b = self._b
        with b.tasks(["n"], repeat(self._vectors * self.lanes), unroll=True) as (n,):
            b.store(b.constant(identity(self._kind, self._element), self._element), total, [n])
        with (
            b.loop("slice", self._split_k) as slice,
            b.tasks(["v"], repeat(self._vectors), unroll=True) as (v,),
            b.tasks(["e"], repeat(self.lanes), unroll=True, vector=True) as (e,),
        ):
            n = v * self.lanes + e
            part = b.load(self._sums, [tile, slice, v, b.thread, e])
            b.store(b.binary(self._kind, b.load(total, [n]), part), total, [n])


SPLIT_K = Knob("split_k", tuple(range(1, 65)), "blocks that share out the terms of a tile of C; the last one adds up")
LARGEST = 64 * 64
"""Elements of the largest tile that a default splits. Where larger ones are too few, smaller ones may fill a GPU whole,
and leave nothing to add up; a thread has registers for both its sums and the loop that adds them."""
_MOST = 32
"""Slices of a choice: the block that adds them up reads a tile for each, while the others have ended."""


@dataclass(frozen=True)
class Slices:
    """The steps along K of a tile of C, shared out to `number` blocks.

    steps: all of them; block_k: terms of a step
    """

    number: int
    steps: int
    block_k: int

    @property
    def each(self) -> int:
        """Steps of a slice; the last one may have fewer, and then multiplies zeros."""
        return ceil(self.steps / self.number)

    def length(self, b: KernelBuilder, end: ReductionEnd | None, operands: Sequence[SSAValue]) -> Index | int:
        """Steps of a slice: where the product's terms end in a call, all slices share those that the call has."""
        for buffer, name in zip(b.inputs, "AB", strict=False):
            buffer.name_hint = name
        return steps_of(b, end, operands, self.steps * self.block_k, self.number * self.block_k)

    @property
    def covered(self) -> int:
        """Terms that all slices together have room for."""
        return self.number * self.each * self.block_k

    def check(self, template: str) -> None:
        """TreadleError for more slices than have a step."""
        used = ceil(self.steps / self.each)
        check_limit(
            "slices along K",
            self.number,
            used,
            message=f"{template} with {self.number} slices of {self.each} of {self.steps} steps along K leaves "
            f"{self.number - used} without any",
            accepted=f"split_k = {used}",
        )


def shared_out(product: MatmulOp, split_k: int, block_k: int) -> Slices:
    """The terms of a product in steps of `block_k`, shared out to `split_k` blocks."""
    return Slices(split_k, ceil(product.reduction_extent / block_k), block_k)


def outer_indices(operand: SSAValue, indices: Sequence[Index]) -> Sequence[Index]:
    """The indices of an operand's outer dimensions; none where it is one matrix for all of the batch."""
    assert isinstance(operand.type, TensorType)
    return indices if operand.type.get_num_dims() > 2 else []


def tiles_of(product: MatmulOp, rows: int, columns: int) -> int:
    """The tiles of `rows` x `columns` that cover the result."""
    *batch, m, n = product.shape
    return prod(batch) * ceil(m / rows) * ceil(n / columns)


def number_of_slices(blocks: int, terms: int, block_k: int, fewest: int, multiprocessors: int) -> int:
    """The number of slices that gives every multiprocessor a block; 1 where half of them have one already.

    Up to twice as many if they then divide the steps, as long as none has less than `fewest` terms.
    """
    most, steps = min(terms // fewest, _MOST), ceil(terms / block_k)
    if blocks > multiprocessors // 2 or most < 2:
        return 1
    wanted = ceil(multiprocessors / blocks)
    even = (s for s in range(wanted, min(2 * wanted, most) + 1) if steps % s == 0)
    each = ceil(steps / next(even, min(wanted, most)))
    return ceil(steps / each)


def first_that_fills(
    product: MatmulOp, tiles: Sequence[tuple[int, int]], split_k: Callable[[int, int], int], multiprocessors: int
) -> tuple[int, int]:
    """The first of the tiles that `those_that_fill` gives."""
    return those_that_fill(product, tiles, split_k, multiprocessors)[0]


def those_that_fill(
    product: MatmulOp, tiles: Sequence[tuple[int, int]], split_k: Callable[[int, int], int], multiprocessors: int
) -> list[tuple[int, int]]:
    """Of tiles in the order of preference those of which every multiprocessor gets one, or a slice if they are small
    enough to be split; the last one where none is that small. `split_k` gives the slices of a tile's terms."""

    def blocks(rows: int, columns: int) -> int:
        return tiles_of(product, rows, columns) * (split_k(rows, columns) if rows * columns <= LARGEST else 1)

    return [tile for tile in tiles if blocks(*tile) >= multiprocessors] or [tiles[-1]]
