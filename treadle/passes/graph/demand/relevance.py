"""Under which facts a value of a definition matters to the elements that are needed."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Operation, SSAValue, Use

from treadle.dialects.graph import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.index.bounds import facts_of
from treadle.index.expr import Expr, Var, is_inside, var
from treadle.index.reader import IndexReader, comparisons_in
from treadle.passes.graph.demand.facts import Extents, Facts, both, either, extent_below, fact


class Relevance:
    """The facts under which each value of a definition matters, from those under which an element is needed.

    A value that only one side of a select takes matters where that side is chosen; one that a read has instead, where
    the read does not happen. What a predicate or an unclamped index is computed from matters everywhere: an element
    that nobody needs may be computed, but must not read beyond a tensor.
    """

    def __init__(self, compute: ComputeOp, needed: Facts, extents: Extents, reader: IndexReader):
        self._needed, self._extents, self._reader = needed, extents, reader
        self._known: dict[SSAValue, Facts] = {}
        self._block(compute.body.block)

    def of_read(self, at: AtOp) -> Facts:
        """The facts under which a read happens and matters."""
        facts = self._known[at.result]
        return facts if at.predicate is None else both(facts, self._given(at.predicate, True))

    def _block(self, block: Block) -> None:
        """Backwards: every use of a value is known before it."""
        for op in reversed(list(block.ops)):
            for result in op.results:
                self._known[result] = self._of_uses(result)
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)

    def _of_uses(self, value: SSAValue) -> Facts:
        found: Facts | None = None
        for use in value.uses:
            facts = self._of_use(use)
            found = facts if found is None else either(found, facts)
            if not found:
                break
        return found or {}

    def _of_use(self, use: Use) -> Facts:
        op = use.operation
        if isinstance(op, YieldOp):
            parent = op.parent_op()
            return self._known[parent.result] if isinstance(parent, ReduceOp) else self._needed
        if isinstance(op, arith.SelectOp) and use.index > 0:
            return both(self._known[op.result], self._given(op.cond, use.index == 1))
        return self._of_read(op, use.index) if isinstance(op, AtOp) else self._of_results(op)

    def _of_read(self, at: AtOp, operand: int) -> Facts:
        """Of an operand of a read: the value that it has instead, an index, or the predicate."""
        facts = self._known[at.result]
        if at.otherwise is not None and operand == len(at.operands) - 1:
            return both(facts, self._given(at.predicate, False))
        position = operand - 1
        if position >= len(at.indices):
            return {}
        assert isinstance(at.source.type, TensorType)
        inside = (0, at.source.type.get_shape()[position] - 1)
        if not is_inside(self._reader.read(at.indices[position]).range(), inside):
            return {}
        return both(facts, self._given(at.predicate, True))

    def _of_results(self, op: Operation) -> Facts:
        found: Facts | None = None
        for result in op.results:
            facts = self._known[result]
            found = facts if found is None else either(found, facts)
        return found or {}

    def _given(self, condition: SSAValue | None, holds: bool) -> Facts:
        """What a condition says of extents if it is true, or false."""
        found: Facts = {}
        if condition is None:
            return found
        for never_negative in facts_of(comparisons_in(self._reader, condition, holds)):
            for limit, extent in self._limits(never_negative):
                # limit - 1 - e >= 0 is e < limit, which is at most the extent.
                key, constant = fact(limit - 1 - never_negative, extent)
                found = both(found, {key: constant})
        return found

    def _limits(self, e: Expr) -> Iterator[tuple[Expr, int]]:
        """The terms of an expression that are no larger than an extent, with its number."""
        for monomial, k in e.terms:
            atom = monomial[0]
            if k != 1 or len(monomial) > 1 or not isinstance(atom, Var) or not isinstance(atom.key, SSAValue):
                continue
            extent = extent_below(atom.key, self._extents)
            if extent is not None:
                yield var(atom.key, *atom.range), extent


__all__ = ["Relevance"]
