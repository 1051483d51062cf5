"""The blocks of a vectorised loop while they are written."""

from __future__ import annotations

from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from treadle.index.algebra import Comparison
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr


class Level:
    """A block that is being written, and the emitter of its index arithmetic."""

    def __init__(self, block: Block, point: InsertPoint, emitter: IndexEmitter):
        self._block = block
        self._builder = Builder(point)
        self._emitter = emitter

    def insert(self, op: Operation) -> None:
        """Writes an operation at the end."""
        self._builder.insert(op)

    def emit(self, expr: Expr | int) -> SSAValue:
        """The value of an index expression."""
        self._emitter.move(self._builder.insertion_point)
        return self._emitter.emit(expr)

    def inside(self, block: Block) -> Level:
        """The level of a block inside the operation that was inserted last; invariant index arithmetic goes before that
        operation."""
        parent = block.parent_op()
        assert parent is not None
        self._emitter.move(InsertPoint.before(parent))
        point = InsertPoint.at_end(block)
        return Level(block, point, self._emitter.inside(point))

    def compare(self, comparison: Comparison) -> SSAValue:
        """Whether a comparison holds that all lanes agree on."""
        compare = arith.CmpiOp(self.emit(comparison.difference), self.emit(0), comparison.kind)
        self.insert(compare)
        return compare.result

    def combine(self, kind: type[Operation], a: SSAValue | None, b: SSAValue) -> SSAValue:
        """An operation on two values; the second one where there is no first."""
        if a is None:
            return b
        op = kind(a, b)  # pyright: ignore[reportCallIssue]
        self.insert(op)
        return op.results[0]


__all__ = ["Level"]
