"""Split-k's reduction: each block of a tile stores its partial sums, and the last one to arrive adds them up."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import ArriveOp, Space
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index
from treadle.schedules.kernel_builder import KernelBuilder

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

    def keep(self, tile: Index, slice: Index, element: Callable[[Index, Index], Scalar]) -> SSAValue:
        """Stores the calling thread's elements, given vector and lane; whether its block is the tile's last."""
        b = self._b
        with (
            b.tasks(["v"], repeat(self._vectors), unroll=True) as (v,),
            b.tasks(["e"], repeat(self.lanes), unroll=True, vector=True) as (e,),
        ):
            b.store(element(v, e), self._sums, [tile, slice, v, b.thread, e])
        last = ArriveOp(self._counters, tile.value, self._split_k)
        last.result.name_hint = "last"
        return b.insert(last)

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


__all__ = ["PartialSums"]
