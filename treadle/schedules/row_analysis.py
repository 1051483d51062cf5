"""Which definitions are row computations, and what one pass over a row keeps.

A *row computation* is a definition with reductions that all run over the same index space, the *columns*, and depend on
outer indices and on one another only. Softmax, layer, group and RMS normalisation are such definitions. The output has
either an element for each column (its *inner* dimensions are the columns) or one element a row (a variance).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerAttr, TensorType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.scalar import FUNCTION_OF
from treadle.index.algebra import stride_along
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.schedules.access_analysis import DefinitionAccesses, remembered
from treadle.schedules.kernel_builder import Index, KernelBuilder, Predicate

# How a row computation walks through memory: along its columns, or across its rows.

_KEY = "walked"


def columns_are_contiguous(rows: Rows) -> bool:
    """Whether the elements of a row lie next to one another, where it is read or where the result is written."""
    digits = _digits(rows.extents)
    return 1 in _strides(rows, {arg: digits[n] for arg, n in rows.column_arguments()})


def neighbouring_dims(rows: Rows) -> tuple[int, ...]:
    """The last outer dimensions along which each column of consecutive rows lies at consecutive addresses: the longest
    suffix that every access walks with one stride, and some with stride 1; none if there is no such suffix."""
    args, shape = rows.compute.body.block.args, rows.compute.shape
    dims = tuple(d for d in rows.outer if shape[d] != 1)
    for first in range(len(dims)):
        inside = dims[first:]
        digits = _digits([shape[d] for d in inside])
        strides = _strides(rows, {args[d]: digit for d, digit in zip(inside, digits, strict=True)})
        if None not in strides and 1 in strides:
            return inside
    return ()


def neighbouring_rows(rows: Rows) -> int:
    """How many consecutive rows lie side by side in memory."""
    return prod(rows.compute.shape[d] for d in neighbouring_dims(rows))


def _digits(extents: Sequence[int]) -> list[Expr]:
    """The row-major indices at a position that runs over `extents`."""
    position = var(_KEY, 0, max(prod(extents) - 1, 0))
    quotients = [floordiv(position, prod(extents[n + 1 :])) for n in range(len(extents))]
    return [q if n == 0 else mod(q, extents[n]) for n, q in enumerate(quotients)]


def _strides(rows: Rows, overrides: Mapping[SSAValue, Expr]) -> list[int | None]:
    """How far apart each access of neighbouring positions is; of the result, too."""
    compute = rows.compute
    accesses = DefinitionAccesses(compute, overrides)
    result = const(0)
    for d, arg in enumerate(compute.body.block.args):
        result = result + accesses.index(arg) * prod(compute.shape[d + 1 :])
    differences = [comparison.difference for comparison in accesses.conditions()]
    positions = [*map(accesses.position, compute.reads()), *differences, result]
    return [stride_along(position, _KEY) for position in positions]


# Writing a row computation: its scalars once per row, its columns phase by phase, what buffers keep only once.

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
            return b.evaluated(op, {value: operand(value) for value in op.operands})
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


MOST_CACHED = 1 << 14
"""Columns up to which a template caches what it has read and computed of a row: 512 threads with 32 registers each on a
GPU, 64 KiB of floats in a CPU's second cache. Of longer rows, each reduction reads its elements again."""
MOST_COLUMNS = 1 << 17
"""Columns up to which one block of threads a row is worth the kernels that it saves."""


@dataclass(frozen=True)
class Rows:
    """A definition as a computation on rows.

    inner: the output's dimensions that are columns, in order; none where each row gives one element
    extents: the extents of the columns, those of 1 left out
    reduces: the reductions, in program order
    """

    compute: ComputeOp
    inner: tuple[int, ...]
    extents: tuple[int, ...]
    reduces: tuple[ReduceOp, ...]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return prod(self.extents)

    @property
    def outer(self) -> tuple[int, ...]:
        """The output's dimensions that number the rows."""
        return tuple(d for d in range(len(self.compute.shape)) if d not in self.inner)

    @property
    def outer_extents(self) -> tuple[int, ...]:
        """The extents of the outer dimensions."""
        return tuple(self.compute.shape[d] for d in self.outer)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return prod(self.outer_extents)

    def column_arguments(self) -> Iterator[tuple[SSAValue, int]]:
        """Every index that runs over columns, with the position in `extents` of what it runs over."""
        block = self.compute.body.block
        yield from ((block.args[d], n) for n, d in enumerate(self.inner))
        for reduce in self.reduces:
            long = [arg for arg, extent in zip(reduce.body.block.args, reduce.shape, strict=True) if extent != 1]
            yield from zip(long, range(len(long)), strict=True)

    def zero_arguments(self) -> list[SSAValue]:
        """The indices that are always 0."""
        spaces = [(self.compute.body, self.compute.shape), *((reduce.body, reduce.shape) for reduce in self.reduces)]
        return [
            arg for body, shape in spaces for arg, extent in zip(body.block.args, shape, strict=True) if extent == 1
        ]

    @cached_property
    def numbers(self) -> ValueNumbers:
        """The value numbers of the definition."""
        return ValueNumbers(self)

    @cached_property
    def reused(self) -> frozenset[int]:
        """The values of a column that one phase computes and a later one needs again: reads, and costly arithmetic."""
        return _reused(self)

    @property
    def phases(self) -> list[SSAValue]:
        """What is computed of every column, in order: the terms of each different reduction, then the result."""
        different = {self.numbers.number(reduce.result): reduce for reduce in reversed(self.reduces)}
        reduces = [reduce for reduce in self.reduces if different[self.numbers.number(reduce.result)] is reduce]
        return [*(yielded(reduce.body) for reduce in reduces), yielded(self.compute.body)]

    @property
    def worth_one_kernel(self) -> bool:
        """Whether rows are short enough that sharing each out over a whole device would gain less."""
        return self.columns <= MOST_COLUMNS

    def read_points(self, tensor: SSAValue) -> int:
        """How many elements of `tensor` a template reads: for every row, and every column that an index depends on,
        one for each different index if the row is kept between phases, else one for each phase that reads it."""
        numbers = self.numbers
        of_tensor = [at.result for at in self.compute.reads() if at.source is tensor]
        across = {numbers.number(value) for value in of_tensor if not numbers.is_columnar(value)}
        along = {numbers.number(value) for value in of_tensor if numbers.is_columnar(value)}
        reads = len(along)
        if self.columns > MOST_CACHED:
            reads = sum(len(along & _needed(phase, numbers)) for phase in self.phases)
        return self.rows * (len(across) + reads * self.columns)


@remembered
def analyse_rows(compute: ComputeOp) -> Rows | str:
    """The definition as a row computation, or why it is none."""
    reduces = [op for op in compute.body.walk() if isinstance(op, ReduceOp)]
    if not reduces:
        return "it has no reduction"
    if any(reduce.parent_op() is not compute for reduce in reduces):
        return "a reduction is computed inside another"
    if DYNAMIC_INDEX in compute.shape or 0 in compute.shape or any(0 in reduce.shape for reduce in reduces):
        return f"the extents of {compute.type} and of its reductions are not all known and above 0"
    spaces = {tuple(extent for extent in reduce.shape if extent != 1) for reduce in reduces}
    if len(spaces) > 1:
        return f"its reductions run over different extents: {', '.join(map(str, sorted(spaces)))}"
    extents = spaces.pop()
    args = compute.body.block.args
    used = set[SSAValue]().union(*(_indices_of(reduce, compute) for reduce in reduces))
    free = tuple(d for d, arg in enumerate(args) if arg not in used and compute.shape[d] != 1)
    if free:
        found = tuple(compute.shape[d] for d in free)
        if found != extents:
            return f"the output has extents {found} on which no reduction depends, and they run over {extents}"
    elif len(reduces) == 1:
        return "its one reduction gives one element a row"
    return Rows(compute, free, extents, tuple(reduces))


def _indices_of(reduce: ReduceOp, compute: ComputeOp) -> set[SSAValue]:
    """The output's indices that a reduction depends on."""
    seen: set[SSAValue] = set()
    waiting = [operand for op in reduce.body.walk() for operand in op.operands]
    while waiting:
        value = waiting.pop()
        if value in seen or isinstance(value.type, TensorType):
            continue
        seen.add(value)
        if isinstance(value.owner, Operation):
            waiting.extend(operand for op in value.owner.walk() for operand in op.operands)
    return seen & set(compute.body.block.args)


class ValueNumbers:
    """Numbers for the scalars of a row computation: two scalars of one number are the same function of the row and of
    the column, whichever reduction they stand in."""

    def __init__(self, rows: Rows):
        self._numbers: dict[SSAValue, int] = {}
        self._keys: dict[Hashable, int] = {}
        self._columnar: list[bool] = []
        self._examples: list[SSAValue] = []
        for arg, column in rows.column_arguments():
            self._numbers[arg] = self._intern(("column", column), True, arg)
        for arg in rows.zero_arguments():
            self._numbers[arg] = self._intern(_constant(IntegerAttr(0, IndexType()), arg), False, arg)

    def number(self, value: SSAValue) -> int:
        """The number of a scalar or of a tensor."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = self._of(value)
        return known

    def is_columnar(self, value: SSAValue) -> bool:
        """Whether the value differs between the columns of a row."""
        return self._columnar[self.number(value)]

    def example(self, number: int) -> SSAValue:
        """A value of this number."""
        return self._examples[number]

    def _of(self, value: SSAValue) -> int:
        op = value.owner
        if isinstance(value, BlockArgument) or isinstance(op, Block) or isinstance(value.type, TensorType):
            return self._intern(("outside", value), False, value)
        if isinstance(op, arith.ConstantOp):
            return self._intern(_constant(op.value, value), False, value)
        if isinstance(op, ReduceOp):
            return self._intern(("reduce", op.kind.data, self.number(yielded(op.body))), False, value)
        operands = tuple(self.number(operand) for operand in op.operands)
        key = op.name, operands, frozenset(op.properties.items()), value.type
        return self._intern(key, any(self._columnar[n] for n in operands), value)

    def _intern(self, key: Hashable, columnar: bool, value: SSAValue) -> int:
        known = self._keys.setdefault(key, len(self._keys))
        if known == len(self._columnar):
            self._columnar.append(columnar)
            self._examples.append(value)
        return known


def _constant(value: object, result: SSAValue) -> Hashable:
    return "constant", str(value), result.type  # text tells 0.0 from -0.0


def is_costly(op: Operation) -> bool:
    """Whether recomputing an operation costs more than keeping its result."""
    function = FUNCTION_OF.get(type(op))
    return isinstance(op, arith.DivfOp) or (function is not None and function.cost > 1)


def _reused(rows: Rows) -> frozenset[int]:
    """Walks the phases as a kernel would compute them: what is found computed is not computed from its operands."""
    numbers = rows.numbers
    computed: set[int] = set()
    reused: set[int] = set()
    for phase in rows.phases:
        found = _needed(phase, numbers, stop=computed)
        reused |= computed & found
        computed |= {n for n in found if _may_be_cached(numbers.example(n), numbers)}
    return frozenset(reused)


def _may_be_cached(value: SSAValue, numbers: ValueNumbers) -> bool:
    op = value.owner
    if not isinstance(op, Operation) or not numbers.is_columnar(value):
        return False
    return isinstance(op, AtOp) or is_costly(op)


def _needed(root: SSAValue, numbers: ValueNumbers, stop: Sequence[int] | set[int] = ()) -> set[int]:
    """The numbers of the columnar values that `root` is computed from, itself included; not those below `stop`."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        number = numbers.number(value)
        if number in found or not numbers.is_columnar(value):
            continue
        found.add(number)
        if number not in stop and isinstance(value.owner, Operation):
            waiting.extend(value.owner.operands)
    return found
