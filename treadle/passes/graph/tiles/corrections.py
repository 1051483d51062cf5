"""What zero points add to products of bytes."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import i32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import BinaryOp, CastOp, ReductionOp, ReshapeOp
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of
from treadle.passes.graph.tiles.byte_operands import ByteMatrix, ByteOperand


def corrected(total: SSAValue, left: ByteOperand, matrix: ByteMatrix) -> list[Operation]:
    """What makes a product of bytes that of the numbers: nothing, or operations of which the last gives it."""
    new: list[Operation] = []
    if matrix.added is not None:
        wide = CastOp(left.value, i32)
        sums = ReductionOp("add", wide.result, [len(shape_of(left.value)) - 1], keep=True)
        added = constant_op(matrix.added)
        terms = BinaryOp("mul", sums.result, added.result)
        new += [wide, sums, added, terms, BinaryOp("add", total, terms.result)]
    if left.zero is not None:
        before = new[-1].results[0] if new else total
        terms = _terms(left.zero, matrix.sums)
        new += [*terms, BinaryOp("sub", before, terms[-1].results[0])]
    return new


def corrected_by_both(total: SSAValue, left: ByteOperand, right: ByteOperand) -> list[Operation]:
    """The same of a right operand `[batch..., K, N]` that is known when the model runs."""
    new: list[Operation] = []
    rank, terms = len(shape_of(right.value)), shape_of(right.value)[-2]
    if right.zero is not None:
        rows, zero = _sums(left.value, len(shape_of(left.value)) - 1), ReshapeOp(right.zero, [])
        added = BinaryOp("mul", rows[-1].results[0], zero.result)
        new += [*rows, zero, added, BinaryOp("sub", total, added.result)]
    if left.zero is None:
        return new
    before = new[-1].results[0] if new else total
    new += _sums(right.value, rank - 2)
    if right.zero is not None:
        each, zero = constant_op(np.array(terms, np.int32)), ReshapeOp(right.zero, [])
        all_zeros = BinaryOp("mul", each.result, zero.result)
        new += [each, zero, all_zeros, BinaryOp("sub", new[-1].results[0], all_zeros.result)]
    zero = ReshapeOp(left.zero, [])
    added = BinaryOp("mul", new[-1].results[0], zero.result)
    return [*new, zero, added, BinaryOp("sub", before, added.result)]


def _sums(bytes: SSAValue, dim: int) -> list[Operation]:
    """The sums of bytes along a dimension, which stays."""
    wide = CastOp(bytes, i32)
    return [wide, ReductionOp("add", wide.result, [dim], keep=True)]


def _terms(zero: SSAValue, of_columns: Array) -> list[Operation]:
    """A zero point times the sums of columns."""
    known = constant_of(zero)
    if known is not None:
        with np.errstate(over="ignore"):
            return [constant_op(known.reshape(()).astype(np.int32) * of_columns)]
    sums, number = constant_op(of_columns), ReshapeOp(zero, [])
    return [sums, number, BinaryOp("mul", number.result, sums.result)]


__all__ = ["corrected", "corrected_by_both"]
