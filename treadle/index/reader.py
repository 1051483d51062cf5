"""Index arithmetic (`arith` on `index`) read into expressions. A variable's key is the SSA value that it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, Signedness, TensorType
from xdsl.ir import Block, BlockArgument, SSAValue

from treadle.index.bounds import facts_of, range_under
from treadle.index.comparison import Comparison, comparisons_of
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.index.interface import HasIndexRanges
from treadle.index.linear import function_of
from treadle.index.ranges import Range, is_empty, range_max, range_min, range_of_bits, range_union

_INDEX_BITS = 64


def integer_range(value: SSAValue) -> Range:
    """The bounds of an integer, by its type and by the constants that clamp it."""
    op, type = value.owner, value.type
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return op.value.value.data, op.value.value.data
    if isinstance(op, arith.MinSIOp):
        return range_min(integer_range(op.lhs), integer_range(op.rhs))
    if isinstance(op, arith.MaxSIOp):
        return range_max(integer_range(op.lhs), integer_range(op.rhs))
    if not isinstance(type, IntegerType) or type.width.data == 1:
        return None, None
    bits = type.width.data
    if type.signedness.data is Signedness.UNSIGNED:
        return (0, (1 << bits) - 1) if bits < _INDEX_BITS else (None, None)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


class IndexReader:
    """Reads index arithmetic into expressions; every value is read once.

    A value that is no arithmetic becomes a variable. Its bounds are those that its operation gives (`HasIndexRanges`);
    else loop variables are bounded by their loop, minima and maxima by their operands, results of branches by both
    sides; arguments of other blocks count from 0. Other values, such as data and values carried by loops, are
    unbounded.

    known: expressions for given values, for example digits of one variable
    functions: a value that is no arithmetic is an unknown function of the indices that it is computed from, and so
        advances along none of them by one stride; without, it is a variable by itself

    Unsigned division and remainder are read as floor division: their operands are non-negative by contract.
    """

    def __init__(self, known: Mapping[SSAValue, Expr] | None = None, functions: bool = False) -> None:
        self._functions = functions
        self._read: dict[SSAValue, Expr] = dict(known or {})

    def read(self, value: SSAValue) -> Expr:
        """The expression that computes `value`, an index."""
        expr = self._read.get(value)
        if expr is None:
            expr = self._read[value] = self._through(value)
        return expr

    def comparisons(
        self, op: arith.CmpiOp, replacement: Mapping[SSAValue, Expr] | None = None
    ) -> tuple[Comparison, ...] | None:
        """The conjunction that a comparison of indices is, with variables replaced; None where it is unsigned
        and has no signed form."""
        lhs, rhs = self.read(op.lhs), self.read(op.rhs)
        if replacement:
            lhs, rhs = lhs.substitute(replacement), rhs.substitute(replacement)
        return comparisons_of(arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data], lhs, rhs)

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
        op = value.owner
        if self._functions and not isinstance(op, Block):
            inside = [i for i in op.operands if isinstance(i.type, IndexType) or not isinstance(i.owner, Block)]
            return function_of(value, [self.read(i) for i in inside if not isinstance(i.type, TensorType)])
        lo, hi = self._range(value)
        return const(lo) if lo is not None and lo == hi else var(value, lo, hi)

    def _range(self, value: SSAValue) -> Range:
        op = value.owner
        definer = op.parent_op() if isinstance(op, Block) else op
        given = definer.index_range(value) if isinstance(definer, HasIndexRanges) else None
        if given is not None:
            return given
        if isinstance(op, Block):
            return self._loop_range(value, op)
        if isinstance(op, arith.MinUIOp | arith.MinSIOp):
            return range_min(self.read(op.lhs).range(), self.read(op.rhs).range())
        if isinstance(op, arith.MaxUIOp | arith.MaxSIOp):
            return range_max(self.read(op.lhs).range(), self.read(op.rhs).range())
        if isinstance(op, arith.SelectOp):
            return self._selected(op)
        if isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp):
            return range_of_bits(self.read(op.lhs).range(), self.read(op.rhs).range())
        if isinstance(op, arith.IndexCastOp):
            return integer_range(op.input)
        if isinstance(op, scf.IfOp) and isinstance(value.type, IndexType):
            return self._branch_range(op, op.results.index(value))
        return None, None

    def _branch_range(self, op: scf.IfOp, position: int) -> Range:
        """The bounds of the values that both branches yield; xDSL accepts a branch that yields nothing."""
        ends = [block.last_op for region in op.regions for block in region.blocks]
        yielded = [end.operands[position] for end in ends if end is not None and position < len(end.operands)]
        if len(yielded) < 2:
            return None, None
        lhs, rhs = (self.read(value).range() for value in yielded)
        return range_union(lhs, rhs)

    def _selected(self, op: arith.SelectOp) -> Range:
        """The bounds of both sides, each under the condition that selects it."""
        lhs, rhs, condition = self.read(op.lhs), self.read(op.rhs), op.cond.owner
        found: Sequence[Comparison] = ()
        if isinstance(condition, arith.CmpiOp) and isinstance(condition.lhs.type, IndexType):
            found = self.comparisons(condition) or ()
        otherwise = [found[0].negated()] if len(found) == 1 else []
        sides = range_under(lhs, facts_of(found)), range_under(rhs, facts_of(otherwise))
        possible = [side for side in sides if not is_empty(side)]
        return reduce(range_union, possible or [lhs.range(), rhs.range()])

    def _loop_range(self, value: SSAValue, block: Block) -> Range:
        loop = block.parent_op()
        if not isinstance(value, BlockArgument) or not isinstance(loop, scf.ForOp):
            return 0, None
        if value.index > 0 or not isinstance(value.type, IndexType):
            return None, None
        (lo, first), (_, end) = self.read(loop.lb).range(), self.read(loop.ub).range()
        step = self.read(loop.step).as_int()
        if end is not None and step is not None and lo == first and lo is not None and end > lo and step > 0:
            return lo, lo + (end - 1 - lo) // step * step
        return lo, None if end is None else end - 1
