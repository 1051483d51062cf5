"""Row computations on a GPU: a warp or a block per row, which is read once and stays in registers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, ReduceOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import accumulator, byte_width
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.loop.tiles import WARP, lanes_fold
from treadle.dialects.schedule import Choice
from treadle.schedules.kernel_builder import Index, KernelBuilder, all_of, kernel_builder, narrowed
from treadle.schedules.row_analysis import (
    MOST_CACHED,
    RowBody,
    Rows,
    Slot,
    analyse_rows,
    columns_are_contiguous,
    neighbouring_rows,
)
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_divides, check_limits, number
from treadle.target import Target

_MOST_REGISTERS = 64
"""Registers per thread, of 255, that may cache columns: the rest is for addresses and arithmetic in flight."""
_AT_ONCE = 4
"""Loads in flight per thread where the row is not cached in registers: the unroll factor of loops over its columns."""
_FEWEST_NEIGHBOURS = 4
"""Rows side by side in memory from which on lanes that take them are better than lanes that take columns."""
_FEWEST_AT_ONCE = 8
"""Floats that memory moves at once: 32 bytes."""
_MOST_PARTS = 1024
_MOST_UNSHUFFLED = 64
"""Threads per row where shuffles cannot fold: each thread then folds all partial results, from shared memory."""
_LONGEST = 16
"""Target columns per thread: longer rows get more threads."""
_SMALL_BLOCK = 128
"""Threads per block of which a multiprocessor runs several blocks."""


class RowCuda(Template):
    """A block computes `rows` rows with `parts` threads each: a thread's columns are
    `repeat(n) * spatial(parts) * repeat(vector)`.

    With `cache_row`, a row stays in registers: each column is read once, and each costly value of it is computed once;
    without, each phase reads the row again. A fold goes through registers, then through the lanes of a warp, then
    through shared memory across warps. Neighbouring threads take neighbouring columns (`lanes = "columns"`), or
    neighbouring rows where those are adjacent in memory (`lanes = "rows"`). Source: Milakov and Gimelshein, "Online
    normalizer calculation for softmax" (arXiv 1805.02867), section 1, for what one pass over memory is worth.
    """

    name: ClassVar[str] = "row_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("parts", tuple(2**n for n in range(11)), "threads of a row"),
        Knob("rows", tuple(2**n for n in range(11)), "rows of a block"),
        Knob("lanes", ("columns", "rows"), "what neighbouring threads take"),
        Knob("vector", (1, 2, 4, 8), "neighbouring columns that a thread takes together"),
        Knob("cache_row", (True, False), "whether a row stays in registers between its reductions"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, ComputeOp) and isinstance(analyse_rows(anchor), Rows)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        found = _rows_of(anchor)
        return _across_rows(found, target) if _side_by_side(found) else _along_columns(found, target)

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        found = _rows_of(anchor)
        if _side_by_side(found):
            return {"lanes": "rows", "vector": 1}
        return {"lanes": "columns", "vector": _widest(found, target)}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        found, share = _rows_of(anchor), _Share.of(choices)
        cached = _cache_registers(found, share.chunks(found) * share.vector) if choices["cache_row"] else 0
        used = (
            ("threads", share.threads, target.max_threads_per_block),
            ("registers a thread to cache columns in", cached, _most_cached(share.threads, target)),
        )
        check_limits(f"row_cuda with {share.parts} threads a row and {share.rows} rows", used, target)
        check_divides(
            "columns of vectors",
            share.vector,
            found.columns,
            f"row_cuda: vectors of {share.vector} overrun a row of {found.columns} by {-found.columns % share.vector}",
            accepted="a vector that divides the number of columns",
        )
        check_divides(
            "threads of whole warps",
            WARP,
            share.threads,
            f"row_cuda: {share.parts} threads a row and {share.rows} rows are {share.threads} threads, "
            f"{WARP - share.threads % WARP} short of whole warps",
            accepted=f"a multiple of {WARP}",
        )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        return _RowKernel(_rows_of(anchor), _Share.of(choices), bool(choices["cache_row"])).build(name)


def _cache_registers(found: Rows, columns: int) -> int:
    """Registers that cache the values of so many columns between phases."""
    words = max(1, byte_width(accumulator(found.compute.type.get_element_type())) // 4)
    return columns * len(found.reused) * words


def _most_cached(threads: int, target: Target) -> int:
    """Registers per thread that may cache columns, where blocks of so many threads share a multiprocessor's.

    The other half is for addresses and arithmetic in flight, which do not grow with the columns.
    """
    return min(_MOST_REGISTERS, target.registers_per_multiprocessor // threads // 2)


def _may_cache(found: Rows, columns: int, threads: int, target: Target) -> bool:
    """Whether rows are short enough to be cached, and a thread of a block has registers for that many columns."""
    return found.columns <= MOST_CACHED and _cache_registers(found, columns) <= _most_cached(threads, target)


def _side_by_side(found: Rows) -> bool:
    """Whether it is rows, and not columns, that lie next to one another in memory."""
    return neighbouring_rows(found) >= _FEWEST_NEIGHBOURS and not columns_are_contiguous(found)


def _along_columns(found: Rows, target: Target) -> dict[str, Choice]:
    """A warp a row where that leaves a thread at most 16 columns, more threads for longer rows and where rows are few,
    fewer for rows shorter than a warp."""
    most = _MOST_PARTS if _exchanges(found) else _MOST_UNSHUFFLED
    vector = _widest(found, target)
    units = found.columns // vector
    parts = min(WARP, 1 << (units - 1).bit_length())
    while parts < most and ceil(units / parts) * vector > _LONGEST:
        parts *= 2
    while WARP <= parts < min(most, 256) and units > 2 * parts and found.rows * parts < _filling(target):
        parts *= 2
    rows = max(1, _SMALL_BLOCK // parts)
    while rows > 1 and rows * parts > WARP and found.rows < rows * target.multiprocessors:
        rows //= 2
    cache_row = _may_cache(found, ceil(units / parts) * vector, parts * rows, target)
    return {"parts": parts, "rows": rows, "lanes": "columns", "vector": vector, "cache_row": cache_row}


def _widest(found: Rows, target: Target) -> int:
    """The neighbouring columns of one access: as many as it moves at most, if rows are whole vectors and leave each
    lane of a warp one."""
    widest = min(8, target.vector_bytes // byte_width(found.compute.type.get_element_type()))
    if not columns_are_contiguous(found):
        return 1
    return max(
        v for v in (1, 2, 4, 8) if v <= widest and found.columns % v == 0 and (v == 1 or found.columns >= WARP * v)
    )


def _across_rows(found: Rows, target: Target) -> dict[str, Choice]:
    """A warp's lanes on neighbouring rows; so many threads a row that each has at most 16 columns. Where that leaves
    multiprocessors idle, fewer rows a block, but so many as memory moves at once."""
    parts = 1
    while parts < WARP and ceil(found.columns / parts) > _LONGEST:
        parts *= 2
    rows = max(WARP, _SMALL_BLOCK // parts)
    while rows > _FEWEST_AT_ONCE and rows * parts > WARP and found.rows < rows * target.multiprocessors:
        rows //= 2
    cache_row = _may_cache(found, ceil(found.columns / parts), parts * rows, target)
    return {"parts": parts, "rows": rows, "lanes": "rows", "vector": 1, "cache_row": cache_row}


def _filling(target: Target) -> int:
    """Threads that keep every multiprocessor busy."""
    return target.multiprocessors * 512


def _exchanges(found: Rows) -> bool:
    """Whether every fold may go through the lanes of a warp."""
    return all(lanes_fold(reduce.kind.data, accumulator(reduce.result.type)) for reduce in found.reduces)


def _rows_of(anchor: Anchor) -> Rows:
    assert isinstance(anchor, ComputeOp)
    found = analyse_rows(anchor)
    assert isinstance(found, Rows), found
    return found


@dataclass(frozen=True)
class _Share:
    """How a block's threads share its rows."""

    parts: int
    rows: int
    vector: int
    along_columns: bool

    @staticmethod
    def of(choices: Choices) -> _Share:
        """The share that a choice of knobs means."""
        parts, rows, vector = (number(choices, knob) for knob in ("parts", "rows", "vector"))
        return _Share(parts, rows, vector, choices["lanes"] == "columns")

    @property
    def threads(self) -> int:
        return self.parts * self.rows

    def chunks(self, found: Rows) -> int:
        """Vectors of a thread."""
        return ceil(found.columns / self.vector / self.parts)

    def split(self, b: KernelBuilder) -> tuple[Index, Index]:
        """The calling thread's row of the block, and its part of that row."""
        if self.along_columns:
            return b.thread // self.parts, b.thread % self.parts
        return b.thread % self.rows, b.thread // self.rows


class _RowKernel:
    """Writes the kernel of one row computation."""

    def __init__(self, found: Rows, share: _Share, cache_row: bool):
        self.found, self.share = found, share
        compute = found.compute
        self.tensors = compute.tensors()
        self.b = kernel_builder(self.tensors, compute.type)
        self.chunks = share.chunks(found)
        self.cached: dict[int, SSAValue] = {}
        if cache_row:
            for n in sorted(found.reused):
                self.cached[n] = self.b.alloc("cached", [self.chunks * share.vector], found.numbers.example(n).type)
        self.body = RowBody(self.b, found, self.cached)

    def build(self, name: str) -> KernelOp:
        b, found, share = self.b, self.found, self.share
        self.row, self.part = share.split(b)
        position = b.block * share.rows + self.row
        whole = found.rows % share.rows == 0
        self.exists = None if whole else position < found.rows
        # A thread beyond the last row repeats it, so that all of them reach the folds.
        self.index = (position if whole else position.min(found.rows - 1)).delinearize(found.outer_extents)
        self.body.begin_row(self.index)
        self._finish(self.body.run(self._fold))
        compute = found.compute
        words = compute.operators.data if compute.operators is not None else "compute"
        comment = f"{words} to {compute.type}, {found.rows} rows of {found.columns}"
        return b.kernel(name, self.tensors, compute.type, ceil(found.rows / share.rows), share.threads, comment)

    def _fold(self, reduce: ReduceOp) -> Scalar:
        b, kind = self.b, reduce.kind.data
        type = accumulator(reduce.result.type)
        part = b.alloc("part", [1], type)
        b.store(b.constant(identity(kind, type), type), part, [0])
        with self._columns() as (index, slot):
            term = self.body.column(index, slot).term(reduce)
            b.store(b.binary(kind, b.load(part, [0]), term), part, [0])
        value = self._across(kind, b.load(part, [0]))
        return narrowed(b, value, reduce.result.type)

    @contextmanager
    def _columns(self) -> Generator[tuple[Sequence[Index], Slot]]:
        """A loop over the calling thread's columns: the index of each, and its slot in the register buffers."""
        b, found, share = self.b, self.found, self.share
        units = found.columns // share.vector
        # Unrolled in full, a long loop would have more loads in flight than there are registers.
        at_once = None if self.cached or self.chunks <= _AT_ONCE else _AT_ONCE
        with b.loop("c", self.chunks, unroll=bool(self.cached), at_once=at_once) as c:
            unit = c * share.parts + self.part
            with b.when(unit < units if units % share.parts else None):
                if share.vector == 1:
                    yield unit.delinearize(found.extents), [c]
                    return
                with b.loop("lane", share.vector, unroll=True) as lane:
                    position = unit * share.vector + lane
                    yield position.delinearize(found.extents), [c * share.vector + lane]

    def _finish(self, result: SSAValue) -> None:
        b, found = self.b, self.found
        if not found.inner:
            mine = self.part.equals(0) if self.share.parts > 1 else None
            conditions = [c for c in (mine, self.exists) if c is not None]
            b.store(self.body.column([], []).value(result), b.output, self.index, all_of(conditions))
            return
        with self._columns() as (index, slot):
            value = self.body.column(index, slot).value(result)
            b.store(value, b.output, self._result_index(index), self.exists)

    def _result_index(self, index: Sequence[Index]) -> list[Index]:
        """The result's index at a column of the thread's row."""
        coordinates = dict(zip(self.found.outer, self.index, strict=True))
        coordinates.update(zip(self.found.inner, index, strict=True))
        return [coordinates[d] for d in range(len(coordinates))]

    def _across(self, kind: str, value: Scalar) -> Scalar:
        """The fold of the values that the threads of a row hold, in all of them."""
        share = self.share
        shuffles = share.along_columns and lanes_fold(kind, value.type)
        lanes = min(share.parts, WARP) if shuffles else 1
        if lanes > 1:
            value = self.b.fold_lanes(kind, value, lanes)
        groups = share.parts // lanes
        return value if groups == 1 else self._across_warps(kind, value, lanes, groups)

    def _across_warps(self, kind: str, value: Scalar, lanes: int, groups: int) -> Scalar:
        """One value of each group of `lanes` threads in shared memory, folded in order by every thread.

        Each fold has memory of its own, so that one barrier a fold is enough.
        """
        b, share = self.b, self.share
        scratch = b.alloc("scratch", [share.rows, groups], value.type, Space.SHARED)
        with b.when((self.part % lanes).equals(0) if lanes > 1 else None):
            b.store(value, scratch, [self.row, self.part // lanes])
        b.barrier()
        first = b.load(scratch, [self.row, 0])
        return b.fold("g", groups - 1, first, lambda g, acc: b.binary(kind, acc, b.load(scratch, [self.row, g + 1])))
