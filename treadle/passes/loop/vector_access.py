"""Which accesses of a short loop are one vector access: consecutive, aligned elements under one predicate."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FixedBitwidthType, IndexType, LocationAttr, MemRefType, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.graph.dtypes import byte_width, is_stored
from treadle.dialects.loop import LoadOp, StoreOp
from treadle.index.contiguity import Lanes
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const
from treadle.index.reader import IndexReader


class Writer:
    """Writes operations and index arithmetic at one insertion point."""

    def __init__(self, point: InsertPoint, location: LocationAttr):
        self._builder = Builder(point)
        self._emitter = IndexEmitter(point, location=location)
        self._location = location

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of an index expression."""
        return self._emitter.emit(expr)

    def insert(self, op: Operation) -> Operation:
        """Inserts an operation."""
        op.location = self._location
        return self._builder.insert(op)


@dataclass(frozen=True)
class VectorAccess:
    """An access of a loop of `trips` iterations that moves `lanes` elements at once, `trips / lanes` times."""

    op: LoadOp | StoreOp
    lanes: int
    trips: int

    @property
    def type(self) -> VectorType:
        """The vector's type."""
        buffer = self.op.buffer.type
        assert isinstance(buffer, MemRefType)
        return VectorType(buffer.get_element_type(), [self.lanes])

    @property
    def starts(self) -> range:
        """The iterations whose elements come first in a vector."""
        return range(0, self.trips, self.lanes)


class AccessVectorizer:
    """Finds and writes the vector accesses of one loop, which counts `variable` from 0 to `trips` by 1.

    An index, a predicate and the `else` value of a load must be computable in front of the loop.
    """

    def __init__(self, reader: IndexReader, loop: scf.ForOp, trips: int):
        self._reader, self._loop, self._trips = reader, loop, trips
        self._variable = loop.body.block.args[0]

    def widest(self, op: LoadOp | StoreOp, most_bytes: int) -> VectorAccess | None:
        """The access with the most lanes, a power of two of them; None where there is none of two."""
        return next((VectorAccess(op, n, self._trips) for n in self.lanes_of(op, most_bytes)), None)

    def lanes_of(self, op: LoadOp | StoreOp, most_bytes: int) -> list[int]:
        """Every number of lanes that one access may have, largest first."""
        type = op.buffer.type
        assert isinstance(type, MemRefType)
        element = type.get_element_type()
        if not isinstance(element, FixedBitwidthType) or (element.bitwidth % 8 and not is_stored(element)):
            return []
        counts = [2**n for n in range(5, 0, -1) if 2**n * byte_width(element) <= most_bytes]
        return [n for n in counts if self._trips % n == 0 and self._allows(op, n)]

    def _allows(self, op: LoadOp | StoreOp, count: int) -> bool:
        type = op.buffer.type
        assert isinstance(type, MemRefType)
        lanes = Lanes(self._reader, self._variable, self._trips, count)
        if not lanes.is_run(op.indices) or not all(map(self._is_known_before, op.indices)):
            return False
        if len(op.indices) > 1 and type.get_shape()[-1] % count:
            return False
        if isinstance(op, LoadOp) and op.otherwise is not None and not self._is_given_before(op.otherwise):
            return False
        if op.predicate is None:
            return True
        return self._is_computed_before(op.predicate) and lanes.agree(op.predicate, self._is_inside)

    def _is_known_before(self, index: SSAValue) -> bool:
        """Whether an index is an expression of the loop's variable and of what is defined outside."""
        return all(v.key is self._variable or not self._is_inside(v.key) for v in self._reader.read(index).vars())

    def _is_inside(self, value: object) -> bool:
        owner = value.owner if isinstance(value, SSAValue) else None
        operation = owner if isinstance(owner, Operation) else owner.parent_op() if owner is not None else None
        return operation is not None and self._loop.is_ancestor(operation)

    def _is_given_before(self, value: SSAValue) -> bool:
        return isinstance(value.owner, arith.ConstantOp) or not self._is_inside(value)

    def _is_computed_before(self, predicate: SSAValue) -> bool:
        """Whether `write_predicate` can write a predicate in front of the loop."""
        op = predicate.owner
        if self._is_given_before(predicate):
            return True
        if isinstance(op, arith.AndIOp | arith.OrIOp):
            return self._is_computed_before(op.lhs) and self._is_computed_before(op.rhs)
        if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
            return False
        return all(map(self._is_known_before, (op.lhs, op.rhs)))

    def write_indices(self, access: VectorAccess, start: int, at: Writer) -> list[SSAValue]:
        """The indices of the vector that begins with iteration `start`."""
        return [at.emit(self._from(i, start)) for i in access.op.indices]

    def write_predicate(self, predicate: SSAValue, start: int, at: Writer) -> SSAValue:
        """The predicate of the vector that begins with iteration `start`."""
        op = predicate.owner
        if self._is_given_before(predicate):
            return self.write_value(predicate, at)
        if isinstance(op, arith.AndIOp | arith.OrIOp):
            lhs, rhs = (self.write_predicate(side, start, at) for side in (op.lhs, op.rhs))
            return at.insert(type(op)(lhs, rhs)).results[0]
        assert isinstance(op, arith.CmpiOp)
        lhs, rhs = (at.emit(self._from(side, start)) for side in (op.lhs, op.rhs))
        return at.insert(arith.CmpiOp(lhs, rhs, op.predicate.value.data)).results[0]

    def write_value(self, value: SSAValue, at: Writer) -> SSAValue:
        """A value that is the same in every iteration, outside the loop."""
        op = value.owner
        if isinstance(op, arith.ConstantOp) and self._is_inside(value):
            return at.insert(op.clone()).results[0]
        return value

    def _from(self, index: SSAValue, start: int) -> Expr:
        return self._reader.read(index).substitute({self._variable: const(start)})
