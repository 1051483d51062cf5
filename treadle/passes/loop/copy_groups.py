"""How many elements of a copy one access can move, and its computation for one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import is_pure
from treadle.index.contiguity import Lanes
from treadle.index.reader import IndexReader


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
