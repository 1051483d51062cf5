"""loop-lower-copies: decides how each copy to shared memory is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    IndexType,
    IntegerAttr,
    ModuleOp,
    UnitAttr,
)
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import AsyncCopyOp, CopyOp, LoadOp, SpaceAttr, StoreOp, YieldOp, type_of
from treadle.dialects.scalar import is_zero
from treadle.index.contiguity import Lanes
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import kernels_of
from treadle.schedules.work.rules import COPIED, LEAST_COPY_BYTES, VECTOR_BYTES

# How many elements of a copy one access can move, and its computation for one of them.


@dataclass(frozen=True)
class Elements:
    """The values of a variable, 0 to extent - 1, over which a block computes addresses and predicates.

    reader: the expressions of indices; block: whose argument or loop variable `variable` is
    """

    reader: IndexReader
    block: Block
    variable: SSAValue
    extent: int

    def widest_group(self, indices: Sequence[SSAValue], predicate: SSAValue | None, limit: int) -> int:
        """The largest group of elements that one access can move: consecutive, aligned, and under one predicate. A
        power of two up to `limit` that divides the extent; at least 1."""
        width = 1
        while width * 2 <= limit and self.extent % (width * 2) == 0:
            width *= 2
        while width > 1 and not self._is_group(indices, predicate, width):
            width //= 2
        return width

    def at(self, value: SSAValue, element: SSAValue, point: InsertPoint) -> SSAValue:
        """The value that a pure computation of the block has for `element`, computed at `point`."""
        return self._copied(value, {self.variable: element}, point)

    def _copied(self, value: SSAValue, known: dict[SSAValue, SSAValue], point: InsertPoint) -> SSAValue:
        if value in known or not self._is_inner(value):
            return known.get(value, value)
        op = value.owner
        assert isinstance(op, Operation)
        for operand in op.operands:
            known[operand] = self._copied(operand, known, point)
        copy = op.clone(known)
        Rewriter.insert_op(copy, point)
        known.update(zip(op.results, copy.results, strict=True))
        return known[value]

    def computes(self, value: SSAValue) -> bool:
        """Whether a value depends on nothing in the block but the variable, by pure operations."""
        if value is self.variable or not self._is_inner(value):
            return True
        op = value.owner
        return isinstance(op, Operation) and is_pure(op) and all(map(self.computes, op.operands))

    def _is_inner(self, value: SSAValue) -> bool:
        owner = value.owner
        if isinstance(owner, Block):
            return owner is self.block
        return owner.parent is self.block

    def _is_group(self, indices: Sequence[SSAValue], predicate: SSAValue | None, width: int) -> bool:
        if not all(map(self.computes, indices)):
            return False
        lanes = Lanes(self.reader, self.variable, self.extent, width)
        if not lanes.is_run(indices):
            return False
        return predicate is None or (self.computes(predicate) and lanes.agree(predicate, self._is_inner))


@dataclass(frozen=True)
class LoopLowerCopiesPass(ModulePass):
    """Turns each `loop.copy` into asynchronous copies of 16, 8 or 4 bytes where its region only loads, else into a
    loop of loads and stores.

    ```mlir
    loop.copy async (%e in 8) to %tile[%i, %k] {
      %at = arith.addi %base, %e : index
      %v = loop.load %A[%at] where %inside else %zero : memref<98304xf16>
      loop.yield %v : f16
    } : memref<128x32xf16, #loop.space<shared>>
    ```
    becomes, if `%base` is a multiple of 8 and `%inside` the same for all elements,
    ```mlir
    loop.async_copy 8 %A[%base], %tile[%i, %k] where %inside
        : memref<98304xf16>, memref<128x32xf16, #loop.space<shared>>
    ```
    The same analysis finds groups of 4 or 2 elements. A copy whose region computes, or whose elements are
    scattered, becomes `scf.for %e = %c0 to %c8 step %c1 {... loop.store ...} {loop.unroll, loop.vector}`: it is
    complete before the barrier that asynchronous copies need anyway. Buffers of arguments start at multiples of
    16 bytes.
    """

    name = "loop-lower-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            reader = IndexReader()
            for copy in [inner for inner in kernel.body.walk() if isinstance(inner, CopyOp)]:
                lower_copy(copy, reader)


def lower_copy(copy: CopyOp, reader: IndexReader) -> None:
    """Replaces one copy."""
    elements = Elements(reader, copy.body.block, copy.element, copy.count)
    load = _only_load(copy)
    width = 0 if load is None else _group(load, elements)
    if load is None or width == 0:
        _copy_by_loop(copy)
        return
    for first in range(0, copy.count, width):
        _start_group(copy, load, elements, first, width)
    Rewriter.erase_op(copy)


def _only_load(copy: CopyOp) -> LoadOp | None:
    """The load that an asynchronous copy can perform, if all else in the region computes its address and predicate."""
    load = copy.value.owner
    if copy.is_async is None or not isinstance(load, LoadOp) or load.parent is not copy.body.block:
        return None
    if isinstance(type_of(load.buffer).memory_space, SpaceAttr) or not is_zero(load.otherwise):
        return None
    others = [op for op in copy.body.block.ops if op is not load and not isinstance(op, YieldOp)]
    return load if all(map(is_pure, others)) else None


def _group(load: LoadOp, elements: Elements) -> int:
    """Elements of one asynchronous copy; 0 if no copy is that small."""
    if load.result.type not in COPIED:
        return 0
    size = byte_width(load.result.type)
    width = elements.widest_group(load.indices, load.predicate, VECTOR_BYTES // size)
    return width if width * size >= LEAST_COPY_BYTES else 0


def _start_group(copy: CopyOp, load: LoadOp, elements: Elements, first: int, width: int) -> None:
    """One asynchronous copy of elements `first` to `first + width - 1`."""
    point = InsertPoint.before(copy)
    number = _placed(arith.ConstantOp(IntegerAttr(first, IndexType())), copy)
    source = [elements.at(index, number, point) for index in load.indices]
    predicate = None if load.predicate is None else elements.at(load.predicate, number, point)
    column = copy.indices[-1] if first == 0 else _placed(arith.AddiOp(copy.indices[-1], number), copy)
    group = AsyncCopyOp(width, load.buffer, source, copy.buffer, [*copy.indices[:-1], column], predicate)
    group.attributes |= load.attributes
    _placed(group, copy)


def _copy_by_loop(copy: CopyOp) -> None:
    """Loads, computes and stores one element after the other."""
    lower, upper, step = (_placed(arith.ConstantOp(IntegerAttr(n, IndexType())), copy) for n in (0, copy.count, 1))
    body = copy.body.block
    end = body.last_op
    assert end is not None, "verified"
    column = arith.AddiOp(copy.indices[-1], copy.element)
    store = StoreOp(copy.value, copy.buffer, [*copy.indices[:-1], column.result])
    for op in (column, store):
        op.location = copy.location
    Rewriter.erase_op(end)
    copy.body.detach_block(body)
    last = scf.YieldOp()
    last.location = copy.location
    body.add_ops([column, store, last])
    loop = scf.ForOp(lower, upper, step, [], Region(body))
    for mark in ("loop.unroll", "loop.vector"):
        loop.attributes[mark] = UnitAttr()
    loop.location = copy.location
    Rewriter.insert_op(loop, InsertPoint.before(copy))
    copy.detach()
    copy.erase()


def _placed(op: Operation, copy: CopyOp) -> SSAValue:
    op.location = copy.location
    Rewriter.insert_op(op, InsertPoint.before(copy))
    return op.results[0] if op.results else copy.buffer
