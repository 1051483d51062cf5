"""How often the code of a kernel runs, as cost models count it: trips, probabilities of branches, indices inside."""

from __future__ import annotations

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue

from treadle.dialects.loop import ArriveOp
from treadle.index.algebra import depends_on, likelihood
from treadle.index.expr import Expr
from treadle.index.reader import IndexReader


class Unclamped(IndexReader):
    """Reads an index as if it were not clamped: as far as tiles do not overhang, it is not."""

    def read(self, value: SSAValue) -> Expr:
        op = value.owner
        if isinstance(op, arith.MinSIOp | arith.MaxSIOp):
            return self.read(op.rhs if isinstance(op.lhs.owner, arith.ConstantOp) else op.lhs)
        return super().read(value)


def mean_trips(loop: scf.ForOp, reader: IndexReader) -> float:
    """The trip count of a loop; of bounds that depend on other variables, at the middle of their range."""
    (lo, first), (end, last) = reader.read(loop.lb).range(), reader.read(loop.ub).range()
    step = reader.read(loop.step).as_int() or 1
    if lo is None or first is None or end is None or last is None:
        return 1.0
    return max(1.0, ((end + last) / 2 - (lo + first) / 2) / step)


def probability(condition: SSAValue, reader: IndexReader, taken: SSAValue | None = None) -> float:
    """The probability of a condition, if each value of the index that it compares is equally likely. Comparisons of
    what depends on the index `taken` are true."""
    op = condition.owner
    if isinstance(op, arith.AndIOp):
        return probability(op.lhs, reader, taken) * probability(op.rhs, reader, taken)
    if isinstance(op, arith.OrIOp):
        neither = [1 - probability(side, reader, taken) for side in op.operands]
        return 1 - neither[0] * neither[1]
    if isinstance(op, ArriveOp):
        return 1 / op.blocks.value.data
    if not isinstance(op, arith.CmpiOp) or not isinstance(op.lhs.type, IndexType):
        return 1.0
    comparisons = reader.comparisons(op)
    if comparisons is None or len(comparisons) != 1 or depends_on(comparisons[0].difference, taken):
        return 1.0
    return likelihood(comparisons[0].kind, comparisons[0].difference.range())


__all__ = ["Unclamped", "mean_trips", "probability"]
