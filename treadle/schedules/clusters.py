"""Sums over a cluster: what kernels are written with whose blocks share out the terms of one tile.

Each block sums its part of the terms for the whole tile, sends the sums of every row to the block that finishes that
row, and adds up the rows that are its own in the order of the ranks, so that results do not depend on which block was
first. What is sent lands in shared memory of the receiver, and completes at one barrier there.

Source: NVIDIA, CUDA C++ Programming Guide, "Distributed Shared Memory"; PTX ISA 9.0, "st.async".
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import VectorType
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.hopper import (
    ClusterArriveOp,
    ClusterWaitOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierType,
    MbarrierWaitOp,
    StoreAsyncOp,
)
from treadle.dialects.loop import Space
from treadle.dialects.task import repeat, spatial
from treadle.schedules.kernel_builder import Index, KernelBuilder, narrowed
from treadle.schedules.tiles import Fragment, Region

_PADDING = 8
"""Columns behind each row of partial sums: the rows that a warp writes or reads at once fall to different banks."""
_GROUP = 4
"""Columns that a thread adds up at once: 16 bytes of sums, 8 of a result of 16 bits."""


@dataclass(frozen=True)
class ClusterSums:
    """The partial sums that the blocks of a cluster send to this one, `[block, row, column]`, and where they complete.

    rank: of the calling block; blocks: of the cluster; rows, columns: of the rows that each block finishes
    """

    b: KernelBuilder
    rank: Index
    blocks: int
    rows: int
    columns: int
    parts: SSAValue
    summed: SSAValue

    @staticmethod
    def of(b: KernelBuilder, rank: Index, blocks: int, tile: tuple[int, int], element: Attribute) -> ClusterSums:
        """Shared memory for the sums of a tile, whose rows the blocks share out, and its barrier. All threads reach it;
        a pipe is made behind it, which publishes its barrier, too."""
        rows, columns = tile[0] // blocks, tile[1]
        parts = b.alloc("parts", [blocks, rows, columns + _PADDING], element, Space.SHARED)
        summed = b.alloc("summed", [1], MbarrierType(), Space.SHARED)
        zero = b.index(0).value
        with b.when(b.thread.equals(0)):
            b.perform(MbarrierInitOp(summed, zero, 1))
            b.perform(MbarrierArriveOp(summed, zero, blocks * rows * columns * byte_width(element)))
        return ClusterSums(b, rank, blocks, rows, columns, parts, summed)

    def start(self) -> None:
        """Says that the block has started. All threads reach it, behind a barrier of the block."""
        self.b.perform(ClusterArriveOp())

    def meet(self) -> None:
        """Waits until all blocks of the cluster have started, so that they may be sent sums. All threads reach it."""
        self.b.perform(ClusterWaitOp())

    def send(self, c: Fragment) -> None:
        """Sends each row of a fragment to the block that finishes it."""
        b, pair = self.b, VectorType(c.type.element_type, [2])
        zero = b.index(0).value
        rows, pairs, halves = c.shape
        height = c.type.get_shape()[0]
        with b.tasks(["r", "h"], repeat(rows, height), unroll=True) as (r, h):
            row = c.row(r, h)
            to = row // self.rows
            with b.tasks(["p", "q"], repeat(pairs, halves), unroll=True) as (p, q):
                sums = b.extract(b.load(c.registers, [r, p, q]), [h], pair)
                place = [self.rank.value, (row % self.rows).value, c.column(p, q, b.index(0)).value]
                b.perform(StoreAsyncOp(sums, self.parts, place, (self.summed, zero), to.value))

    def store(self, target: Region, threads: int) -> None:
        """Waits for the sums of all blocks, adds up the rows of the calling one, and writes them: done by so many
        consecutive threads, a power of two.

        target: the whole tile
        """
        b, zero = self.b, self.b.index(0).value
        b.perform(MbarrierWaitOp(self.summed, zero, zero, cluster=True))
        with self._elements(threads) as (row, column):
            total = narrowed(b, self._total(row, column), target.element)
            target.store(total, self.rank * self.rows + row, column)

    def _total(self, row: Index, column: Index) -> Scalar:
        """The sum of an element over all blocks, in the order of their ranks."""
        return reduce(self.b.add, (self.b.load(self.parts, [part, row, column]) for part in range(self.blocks)))

    @contextmanager
    def _elements(self, threads: int) -> Generator[tuple[Index, Index]]:
        """A loop over a thread's elements of the block's rows: row, column."""
        across, thread = self.columns // _GROUP, self.b.thread % threads
        high = min(self.rows, threads // across)
        mapping = repeat(self.rows // high, 1) * spatial(high, across) * repeat(1, _GROUP)
        busy = thread < mapping.workers if mapping.workers < threads else None
        with self.b.when(busy), self.b.tasks(["i", "j"], mapping, thread, unroll=True, vector=True) as (row, column):
            yield row, column


def shared_bytes(tile: tuple[int, int], element_bytes: int) -> int:
    """Of the partial sums of a tile."""
    return tile[0] * (tile[1] + _PADDING) * element_bytes


__all__ = ["ClusterSums", "shared_bytes"]
