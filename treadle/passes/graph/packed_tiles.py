"""Products for a CPU core's matrix unit: what is known of operands of bytes, and constants in panels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, TensorType, i8, i32
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    AtOp,
    BinaryOp,
    CastOp,
    ComputeOp,
    ConstantOp,
    PadOp,
    ReductionOp,
    ReshapeOp,
    TransposeOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import numpy_dtype, ui8
from treadle.dialects.graph.linear import PANEL_COLUMNS
from treadle.dialects.scalar import number_op
from treadle.passes.graph.definition_analysis import moves_data
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of, tensor

# Operands of integer products that are bytes, less a zero point.

BYTES = (i8, ui8)


@dataclass(frozen=True)
class ByteOperand:
    """A tensor of i32 that is `value - zero`: bytes of the same shape, and a tensor of one i32, or None for 0."""

    value: SSAValue
    zero: SSAValue | None = None


@dataclass(frozen=True)
class ByteMatrix:
    """A constant matrix `[K, N]` of i32, or a batch of them, as bytes and what is added to each column; None if that
    is 0."""

    bytes: Array
    added: Array | None
    """`[N]`, of a batch `[batch..., 1, N]`."""
    sums: Array
    """Of the columns of the matrix; as `added`."""


def byte_operand(value: SSAValue) -> ByteOperand | None:
    """What bytes a tensor of i32 consists of; None if it is not known to. What moves the numbers, or pads them with
    zeros, is repeated on the bytes, in front of it."""
    op = value.owner
    if isinstance(op, CastOp) and op.type.get_element_type() == i32:
        return ByteOperand(op.x) if tensor(op.x).get_element_type() in BYTES else None
    if isinstance(op, BinaryOp) and op.kind.data == "sub" and np.prod(shape_of(op.rhs)) == 1:
        found = byte_operand(op.lhs)
        if found is None or found.zero is not None or op.shape != shape_of(op.lhs):
            return None
        return replace(found, zero=op.rhs)
    if not isinstance(op, Operation) or (source := _moved(op)) is None:
        return None
    found = byte_operand(source)
    moves = [] if found is None else _on_bytes(op, found)
    if found is None or not moves:
        return None
    for move in moves:
        move.location = op.location
    Rewriter.insert_op(moves, InsertPoint.before(op))
    return replace(found, value=moves[-1].results[0])


def _moved(op: Operation) -> SSAValue | None:
    """The tensor whose elements an operator moves."""
    if isinstance(op, ReshapeOp | TransposeOp | PadOp):
        return op.x
    if isinstance(op, ComputeOp) and moves_data(op) and len(op.tensors()) == 1:
        return op.tensors()[0]
    return None


def _on_bytes(op: Operation, found: ByteOperand) -> list[Operation]:
    """The operations that move bytes as `op` moves the numbers that they are."""
    if isinstance(op, ReshapeOp):
        return [ReshapeOp(found.value, op.shape)]
    if isinstance(op, TransposeOp):
        return [TransposeOp(found.value, int_list(op.properties, "perm"))]
    if isinstance(op, PadOp):
        number = constant_of(op.value)
        if op.mode.data != "constant" or number is None or number.any():
            return []
        border = _zero_byte(found)
        return [*border, PadOp("constant", found.value, border[-1].results[0], int_list(op.properties, "pads"))]
    assert isinstance(op, ComputeOp)
    return _reading(op, found)


def _reading(op: ComputeOp, found: ByteOperand) -> list[Operation]:
    """A detached definition that reads bytes where `op` reads numbers, and gives them; where that gives 0 without a
    read, the byte that stands for it. Nothing where it gives another number."""
    (outer,) = op.reads()
    if outer.otherwise is not None and not _is_zero(outer.otherwise):
        return []
    move = op.clone()
    (read,) = move.reads()
    before, border = ([], []) if read.predicate is None else _border(found)
    filler = border[0].results[0] if border else None
    unused = None if read.otherwise is None else read.otherwise.owner
    Rewriter.replace_op(read, [*border, AtOp(found.value, read.indices, read.predicate, filler)])
    if isinstance(unused, Operation) and not unused.results[0].uses:
        Rewriter.erase_op(unused)
    words = None if move.operators is None else move.operators.data
    type = TensorType(tensor(found.value).get_element_type(), move.shape)
    region = move.detach_region(0)
    move.erase()
    return [*before, ComputeOp(region, type, words)]


def _border(found: ByteOperand) -> tuple[list[Operation], list[Operation]]:
    """The byte that stands for 0, as a number of a definition, and what computes it in front of that."""
    zero = np.zeros((), np.int32) if found.zero is None else constant_of(found.zero)
    if zero is not None:
        return [], [number_op(int(zero.reshape(())), tensor(found.value).get_element_type())]
    computed = _zero_byte(found)
    return computed, [AtOp(computed[-1].results[0], [])]


def _is_zero(value: SSAValue) -> bool:
    op = value.owner
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) and op.value.value.data == 0


def _zero_byte(found: ByteOperand) -> list[Operation]:
    """The byte that stands for 0, as a tensor of rank 0. A zero point is a byte of the operand's type."""
    element = tensor(found.value).get_element_type()
    if found.zero is None:
        return [constant_op(np.zeros((), numpy_dtype(element)))]
    one = ReshapeOp(found.zero, [])
    return [one, CastOp(one.result, element)]


def byte_matrix(value: SSAValue) -> ByteMatrix | None:
    """Constant matrices of i32 as bytes; None if they are not constant, or if a column has numbers more than 255 apart.

    The difference of an unsigned byte and its zero point has nine bits, but those of a column share a zero point.
    """
    matrix = constant_integers(value)
    if matrix is None or matrix.ndim < 2 or matrix.size == 0:
        return None
    batched = matrix.ndim > 2
    sums = matrix.sum(axis=-2, dtype=np.int32, keepdims=batched)
    for dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        if limits.min <= matrix.min() and matrix.max() <= limits.max:
            return ByteMatrix(matrix.astype(dtype), None, sums)
    lowest = matrix.min(axis=-2, keepdims=batched)
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


# What zero points add to products of bytes.


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


# Constant matrices in panels, as a CPU core's matrix unit reads them.


def panels_of(matrix: Array) -> Array:
    """A matrix `[K, N]` as `[ceil(N / 32), K' / p, 32, p]`; p elements have 4 bytes, K' is K with zeros up to 16 p."""
    (rows, columns), side = matrix.shape, 4 // matrix.itemsize
    deep, wide = -(-rows // (16 * side)) * 16 * side, -(-columns // PANEL_COLUMNS)
    padded = np.zeros((deep, wide * PANEL_COLUMNS), matrix.dtype)
    padded[:rows, :columns] = matrix
    # Of integers, since NumPy moves elements of other libraries' types one by one.
    bits = padded.view(f"u{matrix.itemsize}").reshape(deep // side, side, wide, PANEL_COLUMNS)
    return np.ascontiguousarray(bits.transpose(2, 0, 3, 1)).view(matrix.dtype)
