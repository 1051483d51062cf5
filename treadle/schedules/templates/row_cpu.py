"""Row computations on a CPU: a row is a task, or as many neighbouring rows as a vector has lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import MemRefType, f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.reduction import identity
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import VECTOR_FOLDS, Index, Predicate, kernel_builder, narrowed
from treadle.schedules.row_analysis import (
    MOST_CACHED,
    Column,
    RowBody,
    Rows,
    analyse_rows,
    columns_are_contiguous,
    is_costly,
    neighbouring_dims,
    neighbouring_rows,
)
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, least_power, number
from treadle.target import Target

_FEWEST_LANES = 16
_FEWEST_NEIGHBOURS = 4
_ENOUGH = 16384
"""Elements that are worth handing to another core."""


class RowCpu(Template):
    """Vectors along the columns of one row (`across = "columns"`), `lanes` partial results of a fold at a time; or
    `lanes` rows at once where neighbouring rows are what lies side by side in memory (`across = "rows"`).

    With `cache_row`, costly values, and elements that a prologue computes, stay in a buffer between the reductions;
    plain elements are read again, from the first cache. A block computes `rows` rows, or `rows` groups of them.
    """

    name: ClassVar[str] = "row_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("across", ("columns", "rows"), "what the lanes of a vector take"),
        Knob("lanes", (16, 32, 64), "columns or rows at a time"),
        Knob("rows", tuple(2**n for n in range(17)), "rows, or groups of `lanes` rows, that a block computes"),
        Knob("cache_row", (True, False), "whether costly values stay in a buffer between the reductions"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, ComputeOp) and isinstance(analyse_rows(anchor), Rows)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        found = _rows_of(anchor)
        neighbours = neighbouring_rows(found)
        across = neighbours >= _FEWEST_NEIGHBOURS and not columns_are_contiguous(found)
        lanes = _fitting(neighbours if across else found.columns // 4, target)
        while across and lanes > _FEWEST_LANES and found.columns * lanes > MOST_CACHED:
            lanes //= 2
        together = lanes if across else 1
        tasks = ceil(neighbours / lanes) * (found.rows // neighbours) if across else found.rows
        rows = 1
        while rows * together * found.columns * len(found.phases) < _ENOUGH and rows * 8 < tasks:
            rows *= 2
        cache_row = found.columns * together <= MOST_CACHED
        return {"across": "rows" if across else "columns", "lanes": lanes, "rows": rows, "cache_row": cache_row}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        found, lanes = _rows_of(anchor), number(choices, "lanes")
        if not choices["cache_row"]:
            return
        cached = (
            _padded(found.columns, lanes, target.lanes) if choices["across"] == "columns" else found.columns * lanes
        )
        most = MOST_CACHED + lanes
        message = f"row_cpu caches {cached} elements of each value, {cached - most} too many"
        check_limit("cached elements of each value", cached, most, message=message)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no more rows than there are."""
        return {**choices, "rows": least_power(number(choices, "rows"), _rows_of(anchor).rows)}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        kind = _AlongColumns if choices["across"] == "columns" else _AcrossRows
        return kind(_rows_of(anchor), choices, target.lanes).build(name)


def _fitting(extent: int, target: Target) -> int:
    """The most lanes that are not more than an extent, in at most four vectors, which hide the latency of a fold."""
    most = min(extent, 4 * target.lanes)
    return 64 if most >= 64 else 32 if most >= 32 else _FEWEST_LANES


def _padded(extent: int, lanes: int, vector: int) -> int:
    """An extent in whole vectors: all chunks of `lanes`, then a last one that is not longer than it must be."""
    return extent - extent % lanes + ceil(extent % lanes / vector) * vector


def _rows_of(anchor: Anchor) -> Rows:
    assert isinstance(anchor, ComputeOp)
    found = analyse_rows(anchor)
    assert isinstance(found, Rows), found
    return found


class _RowKernel:
    """What both orders share: the kernel's builder, and the buffers of cached values.

    A loop over lanes has whole vectors (of `vector` elements) only, so that partial results stay in registers.
    """

    def __init__(self, found: Rows, choices: Choices, vector: int):
        self.found, self.vector = found, vector
        self.lanes, self.rows = number(choices, "lanes"), number(choices, "rows")
        self.tensors = found.compute.tensors()
        self.b = kernel_builder(self.tensors, found.compute.type)
        values = [found.numbers.example(n) for n in sorted(found.reused)] if choices["cache_row"] else []
        kept = [v for v in values if not isinstance(v.owner, AtOp) or _is_computed(v.owner, found.compute)]
        self.body = RowBody(self.b, found, {found.numbers.number(v): self._buffer(v) for v in kept})

    def _buffer(self, value: SSAValue) -> SSAValue:
        """A buffer for the value of every column that is worked on before the next reduction."""
        raise NotImplementedError

    def _kernel(self, name: str, tasks: int) -> KernelOp:
        compute = self.found.compute
        words = compute.operators.data if compute.operators is not None else "compute"
        comment = f"{words} to {compute.type}, {self.found.rows} rows of {self.found.columns}"
        return self.b.kernel(name, self.tensors, compute.type, ceil(tasks / self.rows), 1, comment)

    def _result_index(self, row: Sequence[Index], column: Sequence[Index]) -> list[Index]:
        """The result's index at a column of a row."""
        coordinates = dict(zip(self.found.outer, row, strict=True))
        coordinates.update(zip(self.found.inner, column, strict=True))
        return [coordinates[d] for d in range(len(coordinates))]


def _is_computed(read: AtOp, compute: ComputeOp) -> bool:
    """Whether a prologue of the group computes what is read."""
    producer = read.source.owner
    return isinstance(producer, ComputeOp) and producer.parent_op() is compute.parent_op()


class _AlongColumns(_RowKernel):
    """Vectors of columns, row by row."""

    def _buffer(self, value: SSAValue) -> SSAValue:
        return self.b.alloc("cached", [_padded(self.found.columns, self.lanes, self.vector)], value.type)

    def build(self, name: str) -> KernelOp:
        b, found = self.b, self.found
        with b.tasks_of_block("row", found.rows, self.rows) as position:
            self.index = position.delinearize(found.outer_extents)
            self.body.begin_row(self.index)
            self._finish(self.body.run(self._fold))
        return self._kernel(name, found.rows)

    def _columns(self, write: Callable[[Index, Index, Predicate | None], None]) -> None:
        """Writes `write(lane, position, inside)` for all columns: chunks of whole vectors, then what remains."""
        b, columns = self.b, self.found.columns
        whole, rest = columns // self.lanes, columns % self.lanes
        if whole:
            with b.loop("k", whole) as k, b.tasks(["lane"], repeat(self.lanes), unroll=True, vector=True) as (lane,):
                write(lane, k * self.lanes + lane, None)
        if rest:
            tail = repeat(_padded(rest, self.lanes, self.vector))
            with b.tasks(["lane"], tail, unroll=True, vector=True) as (lane,):
                position = lane + whole * self.lanes
                write(lane, position, position < columns if rest % self.vector else None)

    def _column(self, position: Index, inside: Predicate | None) -> tuple[list[Index], Column]:
        index = position.delinearize(self.found.extents)
        return index, self.body.column(index, [position], inside)

    def _fold(self, reduce: ReduceOp) -> Scalar:
        b, kind = self.b, reduce.kind.data
        type = accumulator(reduce.result.type)
        width = min(self.lanes, _padded(self.found.columns, self.lanes, self.vector))
        part = b.alloc("part", [width], type)
        with b.tasks(["lane"], repeat(width), unroll=True, vector=True) as (lane,):
            b.store(b.constant(identity(kind, type), type), part, [lane])

        def write(lane: Index, position: Index, inside: Predicate | None) -> None:
            _, column = self._column(position, inside)
            before = b.load(part, [lane])
            after = b.binary(kind, before, column.term(reduce))
            b.store(after if inside is None else b.select(inside, after, before), part, [lane])

        self._columns(write)
        return narrowed(b, self._fold_lanes(kind, part, width), reduce.result.type)

    def _fold_lanes(self, kind: str, part: SSAValue, width: int) -> Scalar:
        """One of `width` partial results: whole vectors first, then a tree over the lanes of the last one."""
        b, lanes = self.b, self.vector
        while width > lanes:
            half = ceil(width / lanes / 2) * lanes
            with b.tasks(["lane"], repeat(width - half), unroll=True, vector=True) as (lane,):
                pair = b.load(part, [lane]), b.load(part, [lane + half])
                b.store(b.binary(kind, *pair), part, [lane])
            width = half
        type = part.type
        assert isinstance(type, MemRefType)
        element = type.get_element_type()
        if element == f32 and kind in VECTOR_FOLDS:
            return b.fold_vector(kind, part, lanes)
        values = [b.load(part, [n]) for n in range(lanes)]
        while len(values) > 1:
            half = len(values) // 2
            values = [b.binary(kind, x, y) for x, y in zip(values[:half], values[half:], strict=True)]
        return values[0]

    def _finish(self, result: SSAValue) -> None:
        b = self.b
        if not self.found.inner:
            b.store(self.body.column([], []).value(result), b.output, self.index)
            return

        def write(lane: Index, position: Index, inside: Predicate | None) -> None:
            index, column = self._column(position, inside)
            b.store(column.value(result), b.output, self._result_index(self.index, index), inside)

        self._columns(write)


class _AcrossRows(_RowKernel):
    """Vectors of neighbouring rows, column by column."""

    def _buffer(self, value: SSAValue) -> SSAValue:
        return self.b.alloc("cached", [self.found.columns, self.lanes], value.type)

    def build(self, name: str) -> KernelOp:
        b, found = self.b, self.found
        self.dims = neighbouring_dims(found)
        self.side = prod(found.compute.shape[d] for d in self.dims)
        pieces = ceil(self.side / self.lanes)
        total = found.rows // self.side * pieces
        with b.tasks_of_block("group", total, self.rows) as position:
            self.first = (position % pieces) * self.lanes
            others = [found.compute.shape[d] for d in found.outer if d not in self.dims]
            self.others = (position // pieces).delinearize(others)
            self._groups()
        return self._kernel(name, total)

    def _groups(self) -> None:
        """A group of rows: its folds and costly scalars into a buffer of lanes each, then the result."""
        for op in self.body.scalars():
            if isinstance(op, ReduceOp):
                self._fold(op)
            elif is_costly(op):
                self._scalar(op)
            self.body.end_phase()
        self._finish(yielded(self.found.compute.body))

    def _begin(self, lane: Index) -> tuple[list[Index], Predicate | None]:
        """Sets the row that a lane works on: its index, and whether it exists."""
        found = self.found
        position = self.first + lane
        inside = position < self.side if self.side % self.lanes else None
        digits = dict(zip(self.dims, position.delinearize([found.compute.shape[d] for d in self.dims]), strict=True))
        others = iter(self.others)
        index = [digits[d] if d in digits else next(others) for d in found.outer]
        self.body.begin_row(index)
        self.body.lane = lane
        return index, inside

    def _lanes(self) -> AbstractContextManager[Sequence[Index]]:
        return self.b.tasks(["lane"], repeat(self.lanes), unroll=True, vector=True)

    def _fold(self, reduce: ReduceOp) -> None:
        b, kind = self.b, reduce.kind.data
        type = accumulator(reduce.result.type)
        part = b.alloc("part", [self.lanes], type)
        with self._lanes() as (lane,):
            b.store(b.constant(identity(kind, type), type), part, [lane])
        with b.loop("k", self.found.columns) as k, self._lanes() as (lane,):
            _, inside = self._begin(lane)
            column = self.body.column(k.delinearize(self.found.extents), [k, lane], inside)
            b.store(b.binary(kind, b.load(part, [lane]), column.term(reduce)), part, [lane])
        if type != reduce.result.type:
            narrow = b.alloc("fold", [self.lanes], reduce.result.type)
            with self._lanes() as (lane,):
                b.store(narrowed(b, b.load(part, [lane]), reduce.result.type), narrow, [lane])
            part = narrow
        self.body.keep(reduce.result, part)

    def _scalar(self, op: Operation) -> None:
        buffer = self.b.alloc("scalar", [self.lanes], op.results[0].type)
        with self._lanes() as (lane,):
            _, inside = self._begin(lane)
            self.b.store(self.body.column([], [], inside).value(op.results[0]), buffer, [lane])
        self.body.keep(op.results[0], buffer)

    def _finish(self, result: SSAValue) -> None:
        b, found = self.b, self.found
        if not found.inner:
            with self._lanes() as (lane,):
                row, inside = self._begin(lane)
                b.store(self.body.column([], [], inside).value(result), b.output, row, inside)
            return
        with b.loop("k", found.columns) as k, self._lanes() as (lane,):
            row, inside = self._begin(lane)
            index = k.delinearize(found.extents)
            value = self.body.column(index, [k, lane], inside).value(result)
            b.store(value, b.output, self._result_index(row, index), inside)
