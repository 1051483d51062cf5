"""A thread's accumulators in a nest: lanes, threads and blocks that share an element fold their parts at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import prod

from xdsl.ir import SSAValue

from treadle.dialects.graph import ReduceOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import Space
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate, all_of
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.scope import At
from treadle.schedules.split_k import PartialSums

Unrolled = Callable[[Sequence[int], At, Callable[[At], None]], None]
"""Writes unrolled loops over some levels."""


class Accumulators:
    """The accumulators of one position outside of the reduction.

    Of each element there is one, or one for each lane of a vector that runs along the reduction.
    """

    def __init__(self, b: KernelBuilder, reduce: ReduceOp, nest: Nest, unrolled: Unrolled):
        self._b, self._nest, self._kind, self._unrolled = b, nest, reduce.kind.data, unrolled
        self._type = accumulator(reduce.result.type)
        self._tile = [n for n in nest.tile if nest.levels[n].trips > 1]
        self._lanes = [n for n in nest.vector_reduction if nest.levels[n].trips > 1]
        self._shape = [nest.levels[n].trips for n in self._tile]
        self._buffer = self._alloc()
        self._total: SSAValue | None = None

    def _alloc(self) -> SSAValue:
        levels = self._nest.levels
        return self._b.alloc("acc", [levels[n].trips for n in (*self._tile, *self._lanes)] or [1], self._type)

    def identity(self) -> Scalar:
        """What folds to nothing."""
        return self._b.constant(identity(self._kind, self._type), self._type)

    def reset(self, at: At) -> None:
        """Sets all to the identity."""
        self._unrolled([*self._tile, *self._lanes], at, lambda inner: self._set(inner, self.identity()))

    def add(self, at: At, term: Scalar) -> None:
        """Folds one term into its accumulator."""
        self._set(at, self._b.binary(self._kind, self._b.load(self._buffer, self._where(at)), term))

    def each(self, at: At, body: Callable[[At, Scalar], None]) -> None:
        """The elements of the tile with what was folded for each."""
        self._unrolled(self._tile, at, lambda inner: body(inner, self._value(inner)))

    def fold_threads(self, at: At) -> Predicate | None:
        """Folds the parts of threads that share elements; whether the calling thread has the result."""
        fold = self._nest.thread_fold
        if fold is None:
            return None
        part = self._number(at, fold.levels)
        if fold.lanes > 1:
            self._unrolled(self._tile, at, lambda inner: self._fold_lanes(inner, fold.lanes))
        if fold.lanes < fold.parts:
            self._fold_warps(at, part, fold.lanes)
        return part.equals(0)

    @contextmanager
    def folded_blocks(self, at: At) -> Generator[None]:
        """Inside, where only an element's last block comes, are the elements of all blocks that share it."""
        b, nest = self._b, self._nest
        slices = [n for n in nest.slices if nest.levels[n].trips > 1]
        if not slices:
            yield
            return
        split, count = nest.levels[slices[0]].trips, nest.accumulators
        # Each position of a serial tile has sums and a counter of its own: its slices arrive once.
        serial = [n for n in at if nest.roles[n] == "repeat"]
        tile = self._number(at, [*nest.tiles, *serial])
        tiles = nest.grid // split * prod(nest.levels[n].trips for n in serial)
        sums = PartialSums(b, tiles, split, nest.threads, count, self._type, self._kind)
        last = sums.keep(tile, at[slices[0]], lambda v, e: self._numbered(v, e, sums.lanes))
        with b.when(last):
            self._total = b.alloc("total", [count], self._type)
            sums.add_up(tile, self._total)
            yield
            self._total = None

    def _numbered(self, v: Index, e: Index, lanes: int) -> Scalar:
        """An accumulator by its number: element e of vector v, of `lanes` elements."""
        where = (v * lanes + e).delinearize(self._shape) if self._shape else [self._b.index(0)]
        return self._b.load(self._buffer, where)

    def _value(self, at: At) -> Scalar:
        b, place = self._b, [at[n] for n in self._tile]
        if self._total is not None:
            return b.load(self._total, [linear(b, place, self._shape)])
        if not self._lanes:
            return b.load(self._buffer, self._where(at))
        # All that touches the accumulators is vectors, so that they stay in registers; elements are taken of the copy.
        lanes = self._nest.levels[self._lanes[0]].trips
        copy = b.alloc("lanes", [lanes], self._type)
        with b.tasks(["lane"], repeat(lanes), unroll=True, vector=True) as (lane,):
            b.store(b.load(self._buffer, [*place, lane]), copy, [lane])
        first = self.identity()
        return b.fold("lane", lanes, first, lambda lane, acc: b.binary(self._kind, acc, b.load(copy, [lane])))

    def _fold_lanes(self, at: At, lanes: int) -> None:
        self._set(at, self._b.fold_lanes(self._kind, self._value(at), lanes))

    def _fold_warps(self, at: At, part: Index, lanes: int) -> None:
        """Parts of an element by a tree in shared memory; `lanes` threads have the same one already."""
        b, fold = self._b, self._nest.thread_fold
        assert fold is not None
        parts, others = fold.parts // lanes, self._nest.threads // fold.parts
        scratch = b.alloc("scratch", [prod(self._shape), parts, others], self._type, Space.SHARED)
        number, other = part // lanes, self._number(at, fold.others)
        if any(self._nest.roles[n] in ("loop", "repeat") for n in at):
            b.barrier()  # behind what the last round of an outer loop reads

        def cell(inner: At, number: Index) -> list[Index]:
            return [linear(b, [inner[n] for n in self._tile], self._shape), number, other]

        own = (part % lanes).equals(0) if lanes > 1 else None
        self._unrolled(self._tile, at, lambda inner: b.store(self._value(inner), scratch, cell(inner, number), own))
        b.barrier()
        while parts > 1:
            half = (parts + 1) // 2
            folds = all_of([number < parts - half, own])

            def fold_two(inner: At, half: int = half) -> None:
                both = [b.load(scratch, cell(inner, each)) for each in (number, number + half)]
                b.store(b.binary(self._kind, *both), scratch, cell(inner, number))

            with b.when(folds):
                self._unrolled(self._tile, at, fold_two)
            b.barrier()
            parts = half
        self._unrolled(self._tile, at, lambda inner: self._set(inner, b.load(scratch, cell(inner, b.index(0)))))

    def _number(self, at: At, numbers: Sequence[int]) -> Index:
        """The number of the iterations of some levels taken together."""
        moved = [n for n in numbers if n in at]
        return linear(self._b, [at[n] for n in moved], [self._nest.levels[n].trips for n in moved])

    def _set(self, at: At, value: Scalar) -> None:
        self._b.store(value, self._buffer, self._where(at))

    def _where(self, at: At) -> list[Index]:
        return [at[n] for n in (*self._tile, *self._lanes)] or [self._b.index(0)]


def linear(b: KernelBuilder, indices: Sequence[Index], shape: Sequence[int]) -> Index:
    """The row-major position of an element."""
    total = b.index(0)
    for n, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        total = total * extent + index if n else index
    return total
