"""Between index arithmetic in the IR (`arith` on `index`) and symbolic expressions.

`IndexReader` (or `expr_of`) reads the operations that compute a value; `IndexEmitter` writes operations that
compute an expression.  A variable's key is the SSA value that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TypeAlias

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, LocationAttr
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.dialects.loop.copy import CopyOp
from treadle.dialects.loop.index_atom import Div, Mod, Monomial, Var
from treadle.dialects.loop.index_expr import Expr, const, floordiv, mod, var
from treadle.dialects.loop.index_range import Range

RangeOf: TypeAlias = Callable[[SSAValue], "Range | None"]
"""What is known of a value that is not read through; None where nothing is."""


class IndexReader:
    """Reads index arithmetic into expressions; every value is read once.

    ranges: bounds of block arguments and of results it does not read through.  Where it knows none, loop
    variables are bounded by their loop, minima and maxima by their operands, and other index values are
    taken as non-negative (casts from integers and the remaining arith operations: unbounded).

    Unsigned division and remainder are read as floor division: their operands are non-negative by contract.
    """

    def __init__(self, ranges: RangeOf | None = None) -> None:
        self._ranges = ranges
        self._read: dict[SSAValue, Expr] = {}

    def read(self, value: SSAValue) -> Expr:
        """The expression that computes `value`, an index."""
        expr = self._read.get(value)
        if expr is None:
            expr = self._read[value] = self._through(value)
        return expr

    def _through(self, value: SSAValue) -> Expr:
        op = value.owner
        if not isinstance(value.type, IndexType) or isinstance(op, Block):
            return self._opaque(value)
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            return const(op.value.value.data)
        if isinstance(op, arith.AddiOp):
            return self.read(op.lhs) + self.read(op.rhs)
        if isinstance(op, arith.SubiOp):
            return self.read(op.lhs) - self.read(op.rhs)
        if isinstance(op, arith.MuliOp):
            return self.read(op.lhs) * self.read(op.rhs)
        if isinstance(op, arith.DivUIOp | arith.FloorDivSIOp | arith.DivSIOp | arith.RemUIOp | arith.RemSIOp):
            return self._quotient(op, value)
        return self._opaque(value)

    def _quotient(
        self,
        op: arith.DivUIOp | arith.FloorDivSIOp | arith.DivSIOp | arith.RemUIOp | arith.RemSIOp,
        value: SSAValue,
    ) -> Expr:
        dividend, divisor = self.read(op.lhs), self.read(op.rhs).as_int()
        if divisor is None or divisor <= 0:
            return self._opaque(value)
        lo, _ = dividend.range()
        if isinstance(op, arith.DivSIOp | arith.RemSIOp) and (lo is None or lo < 0):
            return self._opaque(value)
        if isinstance(op, arith.RemUIOp | arith.RemSIOp):
            return mod(dividend, divisor)
        return floordiv(dividend, divisor)

    def _opaque(self, value: SSAValue) -> Expr:
        known = self._ranges(value) if self._ranges is not None else None
        lo, hi = known or self._default_range(value)
        return const(lo) if lo is not None and lo == hi else var(value, lo, hi)

    def _default_range(self, value: SSAValue) -> Range:
        op = value.owner
        if isinstance(op, Block):
            return self._loop_range(value, op)
        if isinstance(op, arith.MinUIOp | arith.MinSIOp):
            return _combined(self.read(op.lhs).range(), self.read(op.rhs).range(), _min_lo, _min_hi)
        if isinstance(op, arith.MaxUIOp | arith.MaxSIOp):
            return _combined(self.read(op.lhs).range(), self.read(op.rhs).range(), _max_lo, _max_hi)
        if isinstance(op, arith.SelectOp):
            return _combined(self.read(op.lhs).range(), self.read(op.rhs).range(), _min_lo, _max_hi)
        if op.name.startswith("arith.") or not isinstance(value.type, IndexType):
            return None, None
        return 0, None

    def _loop_range(self, value: SSAValue, block: Block) -> Range:
        loop = block.parent_op()
        if isinstance(loop, CopyOp):
            return 0, loop.count - 1
        if not isinstance(value, BlockArgument) or not isinstance(loop, scf.ForOp):
            return 0, None
        if value.index > 0 or not isinstance(value.type, IndexType):
            return None, None
        (lo, first), (_, end) = self.read(loop.lb).range(), self.read(loop.ub).range()
        step = self.read(loop.step).as_int()
        if end is not None and step is not None and lo == first and lo is not None and end > lo and step > 0:
            return lo, lo + (end - 1 - lo) // step * step
        return lo, None if end is None else end - 1


def expr_of(value: SSAValue, ranges: RangeOf | None = None) -> Expr:
    """The expression that computes one value; `IndexReader` reads several and shares the work."""
    return IndexReader(ranges).read(value)


class IndexEmitter:
    """Writes expressions as arith operations at one place, each subexpression once.

    With an `outer` emitter, whose place is just before the operation that encloses this one's block, the
    parts that do not depend on values defined inside go there: invariant arithmetic leaves the loop.

    Divisions print as `divui` and `remui` where the operand is known to reach no further down than some
    bound (which is shifted away if it is negative), else as `floordivsi`.
    """

    def __init__(
        self, place: InsertPoint, outer: IndexEmitter | None = None, location: LocationAttr | None = None
    ) -> None:
        self._builder = Builder(place)
        self._scope = place.block.parent_op()
        self._outer = outer
        self._location = location or (outer._location if outer is not None else None)
        self._emitted: dict[Expr, SSAValue] = {}

    def inside(self, place: InsertPoint) -> IndexEmitter:
        """An emitter for a block of the operation that follows this emitter's place."""
        return IndexEmitter(place, self)

    def move(self, place: InsertPoint) -> None:
        """Moves the place forward in its block; what was written before stays valid."""
        self._builder.insertion_point = place

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of `expr` at this place, an index."""
        expr = const(expr) if isinstance(expr, int) else expr
        value = self._emitted.get(expr)
        if value is None:
            value = self._emitted[expr] = self._write(expr)
        return value

    def _write(self, expr: Expr) -> SSAValue:
        if self._outer is not None and not any(map(self._is_inner, expr.vars())):
            return self._outer.emit(expr)
        if not expr.terms:
            constant = arith.ConstantOp(IntegerAttr(expr.constant, IndexType()))
            return self._insert(constant, f"c{expr.constant}" if expr.constant >= 0 else None)
        common = gcd(expr.constant, *(k for _, k in expr.terms))
        if common > 1 and (len(expr.terms) > 1 or expr.constant):
            reduced = Expr(tuple((m, k // common) for m, k in expr.terms), expr.constant // common)
            return self._binary(arith.MuliOp, self.emit(reduced), self.emit(common))
        inner = tuple(t for t in expr.terms if self._is_inner_product(t[0]))
        if self._outer is None or len(inner) == len(expr.terms):
            return self._sum(expr)
        rest = Expr(tuple(t for t in expr.terms if t not in inner), expr.constant)
        if all(k < 0 for _, k in rest.terms) and rest.constant <= 0:
            return self._binary(arith.SubiOp, self._sum(Expr(inner, 0)), self._outer.emit(-rest))
        return self._binary(arith.AddiOp, self._sum(Expr(inner, 0)), self._outer.emit(rest))

    def _sum(self, expr: Expr) -> SSAValue:
        added = [self._product(m, k) for m, k in expr.terms if k > 0]
        taken = [self._product(m, -k) for m, k in expr.terms if k < 0]
        if expr.constant < 0 and added:
            taken.append(self.emit(-expr.constant))
        elif expr.constant or not added:
            added.append(self.emit(expr.constant))
        total = added[0]
        for value in added[1:]:
            total = self._binary(arith.AddiOp, total, value)
        for value in taken:
            total = self._binary(arith.SubiOp, total, value)
        return total

    def _product(self, monomial: Monomial, coefficient: int) -> SSAValue:
        term = Expr(((monomial, coefficient),), 0)
        if term in self._emitted:
            return self._emitted[term]
        hoisted = () if self._outer is None else tuple(a for a in monomial if not self._is_inner_product((a,)))
        if hoisted and self._outer is not None:
            inner = [self._atom(a) for a in monomial if a not in hoisted]
            factors = [*inner, self._outer.emit(Expr(((hoisted, coefficient),), 0))]
        else:
            factors = [self._atom(a) for a in monomial] + ([self.emit(coefficient)] if coefficient != 1 else [])
        total = factors[0]
        for factor in factors[1:]:
            total = self._binary(arith.MuliOp, total, factor)
        self._emitted[term] = total
        return total

    def _atom(self, atom: object) -> SSAValue:
        if isinstance(atom, Div):
            return self._division(atom)
        if isinstance(atom, Mod):
            return self._remainder(atom)
        if isinstance(atom, Var) and isinstance(atom.key, SSAValue):
            return atom.key
        raise TypeError(f"{atom} stands for no SSA value; an index variable's key must be one")

    def _division(self, atom: Div) -> SSAValue:
        lo, _ = atom.arg.range()
        divisor = self.emit(atom.divisor)
        if lo is None:
            return self._binary(arith.FloorDivSIOp, self.emit(atom.arg), divisor)
        shift = max(0, -(lo // atom.divisor))
        dividend = self.emit(atom.arg + shift * atom.divisor)
        quotient = self._binary(arith.DivUIOp, dividend, divisor)
        return self._binary(arith.SubiOp, quotient, self.emit(shift)) if shift else quotient

    def _remainder(self, atom: Mod) -> SSAValue:
        lo, _ = atom.arg.range()
        divisor = self.emit(atom.divisor)
        if lo is None:
            dividend = self.emit(atom.arg)
            quotient = self._binary(arith.FloorDivSIOp, dividend, divisor)
            return self._binary(arith.SubiOp, dividend, self._binary(arith.MuliOp, quotient, divisor))
        shift = max(0, -(lo // atom.divisor))
        return self._binary(arith.RemUIOp, self.emit(atom.arg + shift * atom.divisor), divisor)

    def _binary(self, kind: type[arith.SignlessIntegerBinaryOperation], lhs: SSAValue, rhs: SSAValue) -> SSAValue:
        return self._insert(kind(lhs, rhs))

    def _insert(self, op: Operation, name: str | None = None) -> SSAValue:
        if self._location is not None:
            op.location = self._location
        self._builder.insert(op)
        op.results[0].name_hint = name
        return op.results[0]

    def _is_inner_product(self, monomial: Monomial) -> bool:
        return any(map(self._is_inner, Expr(((monomial, 1),), 0).vars()))

    def _is_inner(self, variable: Var) -> bool:
        """Whether the variable's value is defined inside the operation that encloses this place."""
        key = variable.key
        owner = key.owner if isinstance(key, SSAValue) else None
        while owner is not None:
            if owner is self._scope:
                return True
            owner = owner.parent_op()
        return False


def _combined(
    a: Range,
    b: Range,
    lower: Callable[[int | None, int | None], int | None],
    upper: Callable[[int | None, int | None], int | None],
) -> Range:
    return lower(a[0], b[0]), upper(a[1], b[1])


def _min_lo(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _max_hi(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _min_hi(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


def _max_lo(a: int | None, b: int | None) -> int | None:
    return max((x for x in (a, b) if x is not None), default=None)
