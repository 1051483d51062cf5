"""Operands of integer products that are bytes, less a zero point."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import i8, i32
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import BinaryOp, CastOp, ConstantOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import numpy_dtype, ui8
from treadle.passes.graph.rewriting import Array, constant_of, shape_of, tensor

BYTES = (i8, ui8)


@dataclass(frozen=True)
class ByteOperand:
    """A tensor of i32 that is `value - zero`: bytes of the same shape, and a tensor of one i32, or None for 0."""

    value: SSAValue
    zero: SSAValue | None = None


@dataclass(frozen=True)
class ByteMatrix:
    """A constant matrix `[K, N]` of i32 as bytes and what is added to each column; None if that is 0."""

    bytes: Array
    added: Array | None
    sums: Array
    """Of the columns of the matrix."""


def byte_operand(value: SSAValue) -> ByteOperand | None:
    """What bytes a tensor of i32 consists of; None if it is not known to. Reshapes and transposes are repeated on the
    bytes, in front of the operator that moves the numbers."""
    op = value.owner
    if isinstance(op, CastOp) and op.type.get_element_type() == i32:
        return ByteOperand(op.x) if tensor(op.x).get_element_type() in BYTES else None
    if isinstance(op, BinaryOp) and op.kind.data == "sub" and np.prod(shape_of(op.rhs)) == 1:
        found = byte_operand(op.lhs)
        if found is None or found.zero is not None or op.shape != shape_of(op.lhs):
            return None
        return replace(found, zero=op.rhs)
    if not isinstance(op, ReshapeOp | TransposeOp):
        return None
    found = byte_operand(op.x)
    if found is None:
        return None
    if isinstance(op, ReshapeOp):
        moved = ReshapeOp(found.value, op.shape)
    else:
        moved = TransposeOp(found.value, int_list(op.properties, "perm"))
    moved.location = op.location
    Rewriter.insert_op(moved, InsertPoint.before(op))
    return replace(found, value=moved.result)


def byte_matrix(value: SSAValue) -> ByteMatrix | None:
    """A constant matrix of i32 as bytes; None if it is not constant, or if a column has numbers more than 255 apart.

    The difference of an unsigned byte and its zero point has nine bits, but those of a column share a zero point.
    """
    matrix = constant_integers(value)
    if matrix is None or matrix.ndim != 2 or matrix.size == 0:
        return None
    sums = matrix.sum(axis=0, dtype=np.int32)
    for dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        if limits.min <= matrix.min() and matrix.max() <= limits.max:
            return ByteMatrix(matrix.astype(dtype), None, sums)
    lowest = matrix.min(axis=0)
    if (matrix - lowest).max() > np.iinfo(np.uint8).max:
        return None
    return ByteMatrix((matrix - lowest).astype(np.uint8), lowest.astype(np.int32), sums)


def constant_integers(value: SSAValue) -> Array | None:
    """The numbers of a tensor of integers that casts, differences and moves compute from constants."""
    op = value.owner
    if isinstance(op, ConstantOp):
        array = constant_of(value)
        return array if array is not None and array.dtype.kind in "iu" else None
    if isinstance(op, CastOp):
        x = constant_integers(op.x)
        return None if x is None else x.astype(numpy_dtype(op.type.get_element_type()))
    if isinstance(op, BinaryOp) and op.kind.data == "sub":
        a, b = constant_integers(op.lhs), constant_integers(op.rhs)
        return None if a is None or b is None else a - b
    if isinstance(op, ReshapeOp):
        x = constant_integers(op.x)
        return None if x is None else x.reshape(op.shape)
    if isinstance(op, TransposeOp):
        x = constant_integers(op.x)
        return None if x is None else x.transpose(int_list(op.properties, "perm"))
    return None


__all__ = ["BYTES", "ByteMatrix", "ByteOperand", "byte_matrix", "byte_operand", "constant_integers"]
