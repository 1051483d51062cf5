"""Symbolic expressions written out: as text, and as index arithmetic (`arith` on `index`)."""

from __future__ import annotations

from math import gcd

from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, LocationAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.index.expr import Atom, Div, Expr, Mod, Monomial, Var, const

# Index expressions as text: `d0 floordiv 512 * 2 + d1`, spelled as in MLIR's affine maps.


def expression_text(e: Expr) -> str:
    """The text of an expression; a variable is written as its key. Equal expressions have equal texts.

    Products, quotients and remainders bind equally, from left to right, and more than sums, as in MLIR.
    """
    terms = sorted((_monomial(monomial), k) for monomial, k in e.terms)
    signed = [(k < 0, product if abs(k) == 1 else f"{product} * {abs(k)}") for product, k in terms]
    # Text that begins with a minus would be read as one of a number: what is added comes first.
    signed.sort(key=lambda term: term[0])
    if e.constant or not signed:
        signed.append((e.constant < 0, str(abs(e.constant))))
    (negative, first), *rest = signed
    text = f"0 - {first}" if negative and terms else f"-{first}" if negative else first
    return text + "".join(f" {'-' if minus else '+'} {term}" for minus, term in rest)


def _monomial(monomial: Monomial) -> str:
    first, *others = sorted(map(_atom, monomial))
    return " * ".join([first, *(f"({other})" if " " in other else other for other in others)])


def _atom(atom: Atom) -> str:
    if isinstance(atom, Div | Mod):
        argument = expression_text(atom.arg)
        dividend = argument if _is_one_term(atom.arg) else f"({argument})"
        return f"{dividend} {'floordiv' if isinstance(atom, Div) else 'mod'} {atom.divisor}"
    return str(atom)


def _is_one_term(e: Expr) -> bool:
    return not e.constant and len(e.terms) == 1 and e.terms[0][1] > 0


class IndexEmitter:
    """Writes expressions as arith operations at one insertion point, each subexpression once.

    With an `outer` emitter, which inserts just before the operation that encloses this one's block, the
    parts that do not depend on values defined inside go there: invariant arithmetic leaves the loop.

    Divisions print as `divui` and `remui` where the operand is known to reach no further down than some
    bound (which is shifted away if it is negative), else as `floordivsi`.
    """

    def __init__(
        self, point: InsertPoint, outer: IndexEmitter | None = None, location: LocationAttr | None = None
    ) -> None:
        self._builder = Builder(point)
        self._scope = point.block.parent_op()
        self._outer = outer
        self._location = location or (outer._location if outer is not None else None)
        self._emitted: dict[Expr, SSAValue] = {}

    def inside(self, point: InsertPoint) -> IndexEmitter:
        """An emitter for a block of the operation that follows this emitter's insertion point."""
        return IndexEmitter(point, self)

    def move(self, point: InsertPoint) -> None:
        """Moves the insertion point forward in its block; what was written before stays valid."""
        self._builder.insertion_point = point

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of `expr` at the insertion point, an index."""
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
        """Whether the variable's value is defined inside the operation that encloses the insertion point."""
        key = variable.key
        owner = key.owner if isinstance(key, SSAValue) else None
        while owner is not None:
            if owner is self._scope:
                return True
            owner = owner.parent_op()
        return False
