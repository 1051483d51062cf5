"""Which definitions are row computations, and what one pass over a row keeps.

A *row computation* is a definition with reductions that all run over the same index space, the *columns*, and depend on
outer indices and on one another only. Softmax, layer, group and RMS normalisation are such definitions. The output has
either an element for each column (its *inner* dimensions are the columns) or one element a row (a variance).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerAttr, TensorType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.scalar import FUNCTION_OF

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


__all__ = ["MOST_CACHED", "MOST_COLUMNS", "Rows", "ValueNumbers", "analyse_rows"]
