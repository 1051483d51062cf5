"""Which accesses of a short loop are one wide access: consecutive, aligned elements under one predicate."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FixedBitwidthType, IndexType, LocationAttr, MemRefType, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.loop import LoadOp, StoreOp
from treadle.dialects.loop.index_expr import Expr, alignment, const, floordiv, split_linear, var
from treadle.passes.loop.emit_index import IndexEmitter, IndexReader

_LANE = "lane"
_GROUP = "group"


class Writer:
    """Writes operations and index arithmetic at one place."""

    def __init__(self, place: InsertPoint, location: LocationAttr):
        self._builder = Builder(place)
        self._emitter = IndexEmitter(place, location=location)
        self._location = location

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of an index expression."""
        return self._emitter.emit(expr)

    def place(self, op: Operation) -> Operation:
        """Inserts an operation."""
        op.location = self._location
        return self._builder.insert(op)


@dataclass(frozen=True)
class WideAccess:
    """An access of a loop of `trips` iterations that moves `lanes` elements at once, `trips / lanes` times."""

    op: LoadOp | StoreOp
    lanes: int
    trips: int

    @property
    def type(self) -> VectorType:
        """The vector that moves."""
        buffer = self.op.buffer.type
        assert isinstance(buffer, MemRefType)
        return VectorType(buffer.get_element_type(), [self.lanes])

    @property
    def starts(self) -> range:
        """The iterations whose elements come first in a vector."""
        return range(0, self.trips, self.lanes)


class WideAccesses:
    """Finds and writes the wide accesses of one loop, which counts `variable` from 0 to `trips` by 1.

    An index, a predicate and what stands in for a load must be computable in front of the loop.
    """

    def __init__(self, reader: IndexReader, loop: scf.ForOp, trips: int):
        self._reader, self._loop, self._trips = reader, loop, trips
        self._variable = loop.body.block.args[0]

    def widest(self, op: LoadOp | StoreOp, most_bytes: int) -> WideAccess | None:
        """The access with the most lanes, a power of two of them; None where there is none of two."""
        return next((WideAccess(op, n, self._trips) for n in self.lanes_of(op, most_bytes)), None)

    def lanes_of(self, op: LoadOp | StoreOp, most_bytes: int) -> list[int]:
        """Every number of lanes that one access may have, largest first."""
        type = op.buffer.type
        assert isinstance(type, MemRefType)
        element = type.get_element_type()
        if not isinstance(element, FixedBitwidthType) or element.bitwidth % 8:
            return []
        counts = [2**n for n in range(5, 0, -1) if 2**n * element.bitwidth <= 8 * most_bytes]
        return [n for n in counts if self._trips % n == 0 and self._allows(op, n)]

    def _allows(self, op: LoadOp | StoreOp, lanes: int) -> bool:
        type = op.buffer.type
        assert isinstance(type, MemRefType)
        *outer, last = (self._in_lanes(i, lanes) for i in op.indices) if op.indices else (const(0),)
        split = split_linear(last, _LANE)
        if split is None or split[0].as_int() != 1 or not all(map(self._is_known_before, (last, *outer))):
            return False
        if any(map(_differs, outer)) or alignment(split[1]) % lanes or (outer and type.get_shape()[-1] % lanes):
            return False
        if isinstance(op, LoadOp) and op.otherwise is not None and not self._is_given_before(op.otherwise):
            return False
        return op.predicate is None or self._agree(op.predicate, lanes)

    def _in_lanes(self, index: SSAValue, lanes: int) -> Expr:
        group = var(_GROUP, 0, self._trips // lanes - 1) if self._trips > lanes else const(0)
        position = group * lanes + var(_LANE, 0, lanes - 1)
        return self._reader.read(index).substitute({self._variable: position})

    def _is_known_before(self, expr: Expr) -> bool:
        keys = [v.key for v in expr.vars()]
        return all(key in (_LANE, _GROUP) or not self._is_inside(key) for key in keys)

    def _is_inside(self, value: object) -> bool:
        owner = value.owner if isinstance(value, SSAValue) else None
        operation = owner if isinstance(owner, Operation) else owner.parent_op() if owner is not None else None
        return operation is not None and self._loop.is_ancestor(operation)

    def _is_given_before(self, value: SSAValue) -> bool:
        return isinstance(value.owner, arith.ConstantOp) or not self._is_inside(value)

    def _agree(self, predicate: SSAValue, lanes: int) -> bool:
        """Whether the predicate holds in all lanes of a vector or in none, and can be computed before the loop."""
        op = predicate.owner
        if self._is_given_before(predicate):
            return True
        if isinstance(op, arith.AndIOp | arith.OrIOp):
            return self._agree(op.lhs, lanes) and self._agree(op.rhs, lanes)
        if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
            return False
        lhs, rhs = self._in_lanes(op.lhs, lanes), self._in_lanes(op.rhs, lanes)
        return self._is_known_before(lhs - rhs) and lanes_agree(op, lhs, rhs, lanes)

    def write_indices(self, access: WideAccess, start: int, at: Writer) -> list[SSAValue]:
        """The indices of the vector that begins with iteration `start`."""
        return [at.emit(self._from(i, start)) for i in access.op.indices]

    def write_predicate(self, predicate: SSAValue, start: int, at: Writer) -> SSAValue:
        """The predicate of the vector that begins with iteration `start`."""
        op = predicate.owner
        if self._is_given_before(predicate):
            return self.write_value(predicate, at)
        if isinstance(op, arith.AndIOp | arith.OrIOp):
            lhs, rhs = (self.write_predicate(side, start, at) for side in (op.lhs, op.rhs))
            return at.place(type(op)(lhs, rhs)).results[0]
        assert isinstance(op, arith.CmpiOp)
        lhs, rhs = (at.emit(self._from(side, start)) for side in (op.lhs, op.rhs))
        return at.place(arith.CmpiOp(lhs, rhs, op.predicate.value.data)).results[0]

    def write_value(self, value: SSAValue, at: Writer) -> SSAValue:
        """A value that every iteration shares, outside the loop."""
        op = value.owner
        if isinstance(op, arith.ConstantOp) and self._is_inside(value):
            return at.place(op.clone()).results[0]
        return value

    def _from(self, index: SSAValue, start: int) -> Expr:
        return self._reader.read(index).substitute({self._variable: const(start)})


def lanes_agree(op: arith.CmpiOp, lhs: Expr, rhs: Expr, lanes: int) -> bool:
    """Whether a comparison gives the same in all lanes of a vector: its difference has one sign in them."""
    kind = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    difference = lhs - rhs
    if not _differs(difference):
        return True
    if kind.startswith("u"):
        if not (_is_natural(lhs) and _is_natural(rhs)):
            return False
        kind = f"s{kind[1:]}"
    if kind in ("sle", "sgt"):
        difference = difference - 1
    return kind not in ("eq", "ne") and not _differs(floordiv(difference, lanes))


def _differs(expr: Expr) -> bool:
    return any(v.key == _LANE for v in expr.vars())


def _is_natural(expr: Expr) -> bool:
    lo, _ = expr.range()
    return lo is not None and lo >= 0
