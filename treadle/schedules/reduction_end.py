"""Where a reduction of a ranged model ends in a call: at the extent from which on its terms fold to nothing.

The importer masks what is folded over a symbolic dimension (`treadle/frontends/common/masked_operands.py`), so that
terms beyond the call's extent are the fold's identity. A kernel may leave them out. Of a product one factor is 0 there;
the other one lies beyond the extents of the model's tensors, too, so that no result depends on it. Source of the idea:
DietCode (MLSys 2022), section 4.2, whose NN product has a dynamic reduction axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, prod

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Block, OpResult, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, FusedOp, MatmulOp, ReduceOp
from treadle.dialects.graph.compute import only_reduce, yielded, yielded_values
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.graph.extents import Extents, extent_below, extents_around
from treadle.dialects.graph.movement import extent
from treadle.dialects.graph.reduction import identity
from treadle.schedules.kernel_builder import Index, KernelBuilder
from treadle.schedules.template import Anchor

_LESS = arith.CMPI_COMPARISON_OPERATIONS.index("slt")


@dataclass(frozen=True)
class ReductionEnd:
    """tensor: the argument of @main that holds the extent; number: its number among @main's extents.

    dim: of the reduction's dimensions the first of more than one term; bound: terms along it; each: behind each of them
    """

    tensor: SSAValue
    number: int
    bound: int
    dim: int = 0
    each: int = 1


def with_end(tensors: Sequence[SSAValue], end: ReductionEnd | None) -> list[SSAValue]:
    """The operands of a kernel that reads some tensors: the extent is the last one, if the kernel does not read it
    anyway."""
    return list(tensors) if end is None else list(dict.fromkeys([*tensors, end.tensor]))


def terms_of(b: KernelBuilder, end: ReductionEnd, operands: Sequence[SSAValue], least: int = 1) -> Index:
    """Positions along the reduction's dimension that a call has, or the least, in a kernel of `with_end`'s operands."""
    buffer = b.inputs[operands.index(end.tensor)]
    buffer.name_hint = "N"
    found = extent(b, b.load(buffer, []), end.bound)
    found.name_hint = "terms"
    return b.index(found).max(least) if least else b.index(found)


def steps_of(
    b: KernelBuilder, end: ReductionEnd | None, operands: Sequence[SSAValue], terms: int, each: int
) -> Index | int:
    """Steps of `each` of so many terms, or of those that the call has: at least one, the same for all threads."""
    if end is None:
        return ceil(terms / each)
    found = terms_of(b, end, operands) * end.each
    return (found + (each - 1)) // each if each > 1 else found


def reduction_end(anchor: Anchor, *, fused: bool = False) -> ReductionEnd | None:
    """Where the terms of a product, or of a definition with one reduction, end; None where nothing masks them.

    fused: what other groups store has no definition
    """
    extents = extents_around(anchor)
    if not extents:
        return None
    group = anchor.parent if fused else None
    if isinstance(anchor, MatmulOp):
        return _end_of_product(anchor, extents, group)
    reduce = only_reduce(anchor) if isinstance(anchor, ComputeOp) else None
    return None if reduce is None else _end_of_fold(reduce, extents, group)


def _end_of_product(anchor: MatmulOp, extents: Extents, group: Block | None) -> ReductionEnd | None:
    for operand, dim in ((anchor.a, -1), (anchor.b, -2)):
        producer = _producer(operand, group)
        if producer is None:
            continue
        for tensor, number in extents.items():
            beyond = _Beyond(producer.body.block.args[dim], number, extents, group)
            if beyond.constant(yielded(producer.body)) == 0:
                return ReductionEnd(tensor, number, anchor.reduction_extent)
    return None


def _end_of_fold(reduce: ReduceOp, extents: Extents, group: Block | None) -> ReductionEnd | None:
    long = [n for n, size in enumerate(reduce.shape) if size > 1]
    if not long:
        return None
    first, kind = long[0], reduce.kind.data
    nothing = identity(kind, accumulator(reduce.result.type))
    for tensor, number in extents.items():
        # -0 is a sum's identity, and equal to 0.
        if _Beyond(reduce.body.block.args[first], number, extents, group).constant(yielded(reduce.body)) == nothing:
            return ReductionEnd(tensor, number, reduce.shape[first], first, prod(reduce.shape[first + 1 :]))
    return None


def _producer(tensor: SSAValue, group: Block | None) -> ComputeOp | None:
    """The definition of a tensor, in the same group or in the one that stores it; or in a given group only."""
    owner = tensor.owner
    if isinstance(owner, FusedOp) and group is None:
        assert isinstance(tensor, OpResult)
        owner = yielded_values(owner.body)[tensor.index].owner
    return owner if isinstance(owner, ComputeOp) and group in (None, owner.parent) else None


@dataclass(frozen=True)
class _Beyond:
    """What values of a definition are where an index is not below an extent."""

    index: SSAValue
    number: int
    extents: Extents
    group: Block | None

    def constant(self, value: SSAValue) -> float | None:
        """The number that a value is there, whatever else there is; None where it may be several."""
        op = value.owner
        if isinstance(op, arith.ConstantOp):
            return float(op.value.value.data) if isinstance(op.value, FloatAttr | IntegerAttr) else None
        if isinstance(op, AtOp):
            return self._read(op)
        if isinstance(op, arith.ExtFOp | arith.TruncFOp):
            return self.constant(op.operands[0])
        if isinstance(op, arith.MulfOp | arith.MuliOp):
            return 0.0 if 0.0 in (self.constant(op.lhs), self.constant(op.rhs)) else None
        if isinstance(op, arith.SubfOp):
            # What is subtracted from it is an element of the model's tensors, or a fold of some.
            return -inf if self.constant(op.lhs) == -inf else None
        if isinstance(op, math.ExpOp):
            return 0.0 if self.constant(op.operand) == -inf else None
        if isinstance(op, arith.SelectOp):
            return self._either(op.lhs, op.rhs) if not self._fails(op.cond) else self.constant(op.rhs)
        return None

    def _either(self, first: SSAValue, second: SSAValue) -> float | None:
        found = self.constant(first)
        return found if found == self.constant(second) else None

    def _read(self, at: AtOp) -> float | None:
        if at.predicate is not None and at.otherwise is not None:
            other = self.constant(at.otherwise)
            if self._fails(at.predicate):
                return other
            return other if other == self._element(at) else None
        return self._element(at)

    def _element(self, at: AtOp) -> float | None:
        """An element of what the group computes along the index."""
        producer = _producer(at.source, self.group)
        if producer is None:
            return None
        along = [n for n, index in enumerate(at.indices) if index is self.index]
        inner = [replace(self, index=producer.body.block.args[n]) for n in along]
        found = (each.constant(yielded(producer.body)) for each in inner)
        return next((number for number in found if number is not None), None)

    def _fails(self, condition: SSAValue) -> bool:
        """Whether a condition is false there."""
        op = condition.owner
        if isinstance(op, arith.AndIOp):
            return self._fails(op.lhs) or self._fails(op.rhs)
        is_less = isinstance(op, arith.CmpiOp) and op.predicate.value.data == _LESS and op.lhs is self.index
        return is_less and isinstance(op, arith.CmpiOp) and extent_below(op.rhs, self.extents) == self.number


__all__ = ["ReductionEnd", "reduction_end", "steps_of", "terms_of", "with_end"]
