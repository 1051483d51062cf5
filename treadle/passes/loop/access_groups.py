"""How many consecutive elements one access can take: consecutive in memory, aligned, under one predicate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop.index_expr import Expr, alignment, split_linear, var
from treadle.passes.loop.emit_index import IndexReader
from treadle.passes.loop.kernels import is_pure

_BELOW = ("slt", "sge")
"""Comparisons that ask whether the difference of their sides is negative."""
_ABOVE = ("sgt", "sle")
"""Those that ask it of the difference the other way round."""
_CONNECTIVES = (arith.AndIOp, arith.OrIOp, arith.XOrIOp)


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
        """The largest power of two up to `limit`, and a divisor of the extent, of elements that lie next to one
        another, begin at a multiple of their number, and are all accessed or none; at least 1."""
        width = 1
        while width * 2 <= limit and self.extent % (width * 2) == 0:
            width *= 2
        while width > 1 and not self._is_group(indices, predicate, width):
            width //= 2
        return width

    def at(self, value: SSAValue, element: SSAValue, place: InsertPoint) -> SSAValue:
        """The value that a pure computation of the block has for `element`, computed at `place`."""
        return self._copied(value, {self.variable: element}, place)

    def _copied(self, value: SSAValue, known: dict[SSAValue, SSAValue], place: InsertPoint) -> SSAValue:
        if value in known or not self._is_inner(value):
            return known.get(value, value)
        op = value.owner
        assert isinstance(op, Operation)
        for operand in op.operands:
            known[operand] = self._copied(operand, known, place)
        copy = op.clone(known)
        Rewriter.insert_op(copy, place)
        known.update(zip(op.results, copy.results, strict=True))
        return known[value]

    def computes(self, value: SSAValue) -> bool:
        """Whether a value needs nothing of the block but pure operations and the variable."""
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
        *outer, last = (self._grouped(index, width) for index in indices)
        within = ("within", self.variable)
        if any(v.key == within for index in outer for v in index.vars()) or not _is_run(last, within, width):
            return False
        return predicate is None or self._is_uniform(predicate, width)

    def _grouped(self, value: SSAValue, width: int) -> Expr:
        """An index with the variable as `width` times the number of the group plus the place within."""
        group = var(("group", self.variable), 0, self.extent // width - 1)
        within = var(("within", self.variable), 0, width - 1)
        return self.reader.read(value).substitute({self.variable: group * width + within})

    def _is_uniform(self, predicate: SSAValue, width: int) -> bool:
        """Whether a predicate is the same for all elements of a group."""
        if not self._is_inner(predicate):
            return True
        op = predicate.owner
        if isinstance(op, _CONNECTIVES):
            return all(self._is_uniform(side, width) for side in op.operands)
        if isinstance(op, arith.ConstantOp):
            return True
        if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType) or not self.computes(predicate):
            return False
        difference = self._grouped(op.lhs, width) - self._grouped(op.rhs, width)
        within = ("within", self.variable)
        if all(v.key != within for v in difference.vars()):
            return True
        kind = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
        # Of `base + place < 0` with an aligned base and a place in the group, only the base matters.
        if kind in _BELOW:
            return _is_run(difference, within, width)
        return kind in _ABOVE and _is_run(-difference, within, width)


def _is_run(expr: Expr, within: tuple[str, SSAValue], width: int) -> bool:
    """Whether an expression is a multiple of `width` plus the place in the group."""
    split = split_linear(expr, within)
    return split is not None and split[0] == 1 and alignment(split[1]) % width == 0
