"""Writing a row computation: its scalars once per row, its columns phase by phase, what buffers keep only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AtOp, ReduceOp, YieldOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.definition import Scalar, widened
from treadle.schedules.index_value import Index, Predicate
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.row_analysis import Rows

Slot = Sequence[Index]
"""The indices of a column in the buffers that keep values between phases."""


class RowBody:
    """Writes one row at a time.

    A *phase* computes something of every column: the terms of a reduction, or the result. `begin_row` gives the row's
    index; then `run` goes through the definition and asks for each reduction's fold.

    cached: a buffer for each value that a later phase reads again; empty if each phase computes all of its values again
    """

    def __init__(self, b: KernelBuilder, rows: Rows, cached: Mapping[int, SSAValue]):
        self.b, self.rows, self.numbers = b, rows, rows.numbers
        self._cached = cached
        self._available: set[int] = set()
        self._fresh: set[int] = set()
        self._row: dict[int, SSAValue] = {}
        self._kept: dict[int, SSAValue] = {}
        self.lane: Index | None = None
        tensors = rows.compute.tensors()
        self._buffers = dict(zip(tensors, b.inputs, strict=True))

    def begin_row(self, index: Sequence[Index]) -> None:
        """Sets the row whose values are written from here on; `index` along the outer dimensions."""
        args = self.rows.compute.body.block.args
        self._row = {self.numbers.number(args[d]): i.value for d, i in zip(self.rows.outer, index, strict=True)}

    def run(self, fold: Callable[[ReduceOp], Scalar]) -> SSAValue:
        """Writes the row's own scalars here and its reductions by `fold`; what is left is the definition's result."""
        self._available.clear()
        for op in self.scalars():
            number = self.numbers.number(op.results[0])
            self._row[number] = fold(op) if isinstance(op, ReduceOp) else self._emit(op, self._row, None)
            self.end_phase()
        return yielded(self.rows.compute.body)

    def scalars(self) -> Iterator[Operation]:
        """The operations of the definition that give one value a row, each value once, in order."""
        seen: set[int] = set()
        for op in self.rows.compute.body.block.ops:
            if isinstance(op, YieldOp) or self.numbers.is_columnar(op.results[0]):
                continue
            number = self.numbers.number(op.results[0])
            if number not in seen:
                seen.add(number)
                yield op

    def end_phase(self) -> None:
        """From here on, what this phase has stored in the buffers is read from them."""
        self._available |= self._fresh
        self._fresh.clear()

    def keep(self, value: SSAValue, buffer: SSAValue) -> None:
        """Reads a scalar of the row from a buffer at `lane` from here on: each lane works on a row of its own."""
        self._kept[self.numbers.number(value)] = buffer

    def column(self, index: Sequence[Index], slot: Slot, inside: Predicate | None = None) -> Column:
        """The column at `index` (along the columns' extents), which has the indices `slot` in the buffers.

        Without an index, only what is the same in all columns has a value.
        inside: whether the column exists; elements are read only if it does
        """
        values = dict(self._row)
        if index:
            for arg, position in self.rows.column_arguments():
                values[self.numbers.number(arg)] = index[position].value
        return Column(self, values, slot, inside)

    def _emit(self, op: Operation, known: dict[int, SSAValue], column: Column | None) -> Scalar:
        """Writes an operation whose operands are known, or are written in front of it."""

        def operand(value: SSAValue) -> SSAValue:
            return self.demand(value, known, column)

        b = self.b
        if not isinstance(op, AtOp):
            return b.insert(op.clone({value: operand(value) for value in op.operands}))
        indices = [operand(i) for i in op.indices]
        where = [] if op.predicate is None else [operand(op.predicate)]
        if column is not None and column.inside is not None:
            where.append(column.inside.value)
        otherwise = None if op.otherwise is None else operand(op.otherwise)
        if where and otherwise is None:
            otherwise = b.constant(0, op.result.type)
        return b.load(self._buffers[op.source], indices, b.all(where), otherwise)

    def demand(self, value: SSAValue, known: dict[int, SSAValue], column: Column | None) -> Scalar:
        """The scalar of a value of the definition, written here unless it is known."""
        number = self.numbers.number(value)
        if number in known:
            return known[number]
        if not isinstance(value.owner, Operation):
            known[number] = self.b.constant(0)  # the index of a dimension of extent 1
            return known[number]
        if number in self._kept and self.lane is not None:
            known[number] = self.b.load(self._kept[number], [self.lane])
            return known[number]
        buffer = self._cached.get(number)
        if buffer is None or column is None:
            known[number] = self._emit(value.owner, known, column)
        elif number in self._available:
            known[number] = self.b.load(buffer, column.slot)
        else:
            known[number] = self._emit(value.owner, known, column)
            self.b.store(known[number], buffer, column.slot)
            self._fresh.add(number)
        return known[number]


class Column:
    """The values of one column in one phase."""

    def __init__(self, body: RowBody, values: dict[int, SSAValue], slot: Slot, inside: Predicate | None):
        self._body, self._values, self.slot, self.inside = body, values, slot, inside

    def value(self, value: SSAValue) -> Scalar:
        """The scalar of a value of the definition at this column."""
        return self._body.demand(value, self._values, self)

    def term(self, reduce: ReduceOp) -> Scalar:
        """What the column contributes to a reduction, in the type of its accumulator."""
        return widened(self._body.b, self.value(yielded(reduce.body)))


__all__ = ["Column", "RowBody", "Slot"]
