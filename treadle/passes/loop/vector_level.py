"""The blocks of a vectorised loop while they are written."""

from __future__ import annotations

from xdsl.builder import Builder
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

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


__all__ = ["Level"]
