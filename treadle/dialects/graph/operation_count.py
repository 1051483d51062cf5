"""How many arithmetic operations a tensor takes by its definition, whatever a kernel makes of it."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.graph.attention import AttentionOp
from treadle.dialects.graph.compute import ComputeOp, ReduceOp, index
from treadle.dialects.graph.definition import Operator, definition, shape_of
from treadle.dialects.graph.winograd import WinogradConvOp
from treadle.dialects.scalar import FUNCTION_OF

_ARITHMETIC = (
    arith.FloatingPointLikeBinaryOperation,
    arith.NegfOp,
    arith.SignlessIntegerBinaryOperation,
    arith.SignlessIntegerBinaryOperationWithOverflow,
)
_SOFTMAX = 5
"""Operations on a score: the scale, the comparison with the largest, its difference from that, exp, the sum."""

Indices = frozenset[SSAValue]


def count_operations(op: ComputeOp | Operator) -> int:
    """Additions, multiplications and other arithmetic on elements: a product of M x K by K x N takes 2 M N K.

    A function such as exp is one operation, and each term of a reduction is folded by one; comparisons, choices,
    conversions and the arithmetic of indices and truth values are none. What does not depend on an index is computed
    once for all of its values: the sum of a softmax once for each row. Of a causal attention only the scores that it
    sees are counted, and of a convolution in tiles its products and transforms. These are the operations of GFLOP/s, as
    they are usually given.
    """
    if isinstance(op, AttentionOp):
        return _attention(op)
    if isinstance(op, WinogradConvOp):
        return op.operation_count
    compute = op if isinstance(op, ComputeOp) else definition(op)
    counter = _OperationCounter(compute)
    if compute is not op:
        compute.erase()
    return counter.total


class _OperationCounter:
    """Counts a definition's operations, each as often as the indices that it depends on have values."""

    def __init__(self, compute: ComputeOp):
        self.total = 0
        self._extents: dict[SSAValue, int] = dict(zip(compute.body.block.args, compute.shape, strict=True))
        self._indices: dict[SSAValue, Indices] = {arg: frozenset([arg]) for arg in compute.body.block.args}
        self._block(compute.body.block)

    def _block(self, block: Block) -> Indices:
        """Counts a block; the indices that what it yields depends on."""
        used: Indices = frozenset()
        for op in block.ops:
            used = frozenset[SSAValue]().union(*(self._indices.get(operand, ()) for operand in op.operands))
            if isinstance(op, ReduceOp):
                used = self._reduction(op)
            elif op.results and op.results[0].type not in (index, i1) and _is_arithmetic(op):
                self._add(used)
            for result in op.results:
                self._indices[result] = used
        return used

    def _reduction(self, op: ReduceOp) -> Indices:
        args = op.body.block.args
        for arg, extent in zip(args, op.shape, strict=True):
            self._extents[arg], self._indices[arg] = extent, frozenset([arg])
        used = self._block(op.body.block).union(args)
        self._add(used)
        return used.difference(args)

    def _add(self, used: Indices) -> None:
        self.total += prod(self._extents[arg] for arg in used)


def _is_arithmetic(op: Operation) -> bool:
    return isinstance(op, _ARITHMETIC) or type(op) in FUNCTION_OF


def _attention(op: AttentionOp) -> int:
    *outer, rows, columns = op.scores_shape
    depth, width = shape_of(op.q)[-1], op.shape[-1]
    seen = rows * columns
    if op.causal.value.data:
        seen = sum(min(columns, max(0, row + columns - rows + 1)) for row in range(rows))
    each = 2 * depth + _SOFTMAX + (op.mask is not None) + 2 * width
    return prod(outer) * (seen * each + rows * width)  # at last each row is divided by its sum


__all__ = ["count_operations"]
