"""Writing how the blocks of a tile of C hand their partial sums to the last of them."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import ArriveOp, Space
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index
from treadle.schedules.kernel_builder import KernelBuilder

_VECTOR_BYTES = 16


class PartialSums:
    """The accumulators of every block of a launch of `tiles` times `slices` blocks, in device memory.

    Each of `threads` threads holds `held` elements. They lie as vectors of 16 bytes, those of consecutive threads next
    to one another, since a thread reads what the threads of its number wrote: the place in C does not matter.
    """

    def __init__(self, b: KernelBuilder, tiles: int, slices: int, threads: int, held: int, element: Attribute):
        self._b, self._slices, self._element = b, slices, element
        self.lanes = _VECTOR_BYTES // byte_width(element)
        """Elements of a vector."""
        self._vectors = held // self.lanes
        shape = [tiles, slices, self._vectors, threads, self.lanes]
        self._sums = b.alloc("partial_sums", shape, element, Space.DEVICE)
        self._counters = b.alloc("counters", [tiles], i32, Space.ZEROED)

    def keep(self, tile: Index, slice: Index, held: Callable[[Index, Index], Scalar]) -> SSAValue:
        """Stores the calling thread's elements, given vector and lane; whether its block is the tile's last."""
        b = self._b
        with (
            b.tasks(["v"], repeat(self._vectors), unroll=True) as (v,),
            b.tasks(["e"], repeat(self.lanes), unroll=True, vector=True) as (e,),
        ):
            b.store(held(v, e), self._sums, [tile, slice, v, b.thread, e])
        last = ArriveOp(self._counters, tile.value, self._slices)
        last.result.name_hint = "last"
        return b.insert(last)

    def add_up(self, tile: Index, total: SSAValue) -> None:
        """Sets the elements of a register buffer to the sums over all slices, always in the slices' order."""
        b = self._b
        with b.tasks(["n"], repeat(self._vectors * self.lanes), unroll=True) as (n,):
            b.store(b.constant(0, self._element), total, [n])
        with (
            b.loop("slice", self._slices) as slice,
            b.tasks(["v"], repeat(self._vectors), unroll=True) as (v,),
            b.tasks(["e"], repeat(self.lanes), unroll=True, vector=True) as (e,),
        ):
            n = v * self.lanes + e
            part = b.load(self._sums, [tile, slice, v, b.thread, e])
            b.store(b.add(b.load(total, [n]), part), total, [n])


__all__ = ["PartialSums"]
