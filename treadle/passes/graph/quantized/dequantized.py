"""Tensors of floats that are bytes, less a zero point, times a scale."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import BinaryOp, CastOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import integer_limits, ui8
from treadle.passes.graph.quantized.constants import constant_value
from treadle.passes.graph.rewriting import shape_of, tensor

LARGEST = 255
"""The size of a byte less a zero point, at most."""


@dataclass(frozen=True)
class Dequantized:
    """`numbers * scale`: a tensor of i32, each at most `LARGEST` in size, and one of f32 that is broadcast to it.

    moves: the detached operations that compute both, in order, where the model moves what it has dequantised
    """

    numbers: SSAValue
    scale: SSAValue
    moves: tuple[Operation, ...] = ()


def dequantized(value: SSAValue) -> Dequantized | None:
    """What a tensor of f32 was dequantised from; None if it was not. Reshapes of a tensor with one scale, and
    transposes, are repeated on the numbers."""
    op = value.owner
    if isinstance(op, BinaryOp) and op.kind.data == "mul" and tensor(value).get_element_type() == f32:
        cast = op.lhs.owner
        fits = isinstance(cast, CastOp) and shape_of(op.lhs) == op.shape and is_byte_difference(cast.x)
        return Dequantized(cast.x, op.rhs) if isinstance(cast, CastOp) and fits else None
    if not isinstance(op, ReshapeOp | TransposeOp):
        return None
    found = dequantized(op.x)
    if found is None:
        return None
    return _reshaped(op, found) if isinstance(op, ReshapeOp) else _transposed(op, found)


def is_byte_difference(value: SSAValue) -> bool:
    """Whether a tensor of i32 is one of bytes, or one of bytes less a zero point that is a byte of the same type."""
    op = value.owner
    if isinstance(op, CastOp):
        return op.type.get_element_type() == i32 and tensor(op.x).get_element_type() in (i8, ui8)
    if not isinstance(op, BinaryOp) or op.kind.data != "sub":
        return False
    x = op.lhs.owner
    if not isinstance(x, CastOp) or not is_byte_difference(op.lhs) or op.shape != shape_of(op.lhs):
        return False
    return _is_number_of(op.rhs, tensor(x.x).get_element_type())


def _is_number_of(zero: SSAValue, element: Attribute) -> bool:
    """Whether a tensor of i32 is one of numbers that a type of bytes has."""
    cast, number = zero.owner, constant_value(zero)
    if number is not None:
        lowest, highest = integer_limits(element)
        return bool(np.all((lowest <= number) & (number <= highest)))
    return isinstance(cast, CastOp) and tensor(cast.x).get_element_type() == element


def _reshaped(op: ReshapeOp, found: Dequantized) -> Dequantized | None:
    if prod(shape_of(found.scale)) != 1:
        return None
    numbers = ReshapeOp(found.numbers, op.shape)
    scale = ReshapeOp(found.scale, [])
    return Dequantized(numbers.result, scale.result, (*found.moves, numbers, scale))


def _transposed(op: TransposeOp, found: Dequantized) -> Dequantized:
    order = int_list(op.properties, "perm")
    numbers = TransposeOp(found.numbers, order)
    shape = shape_of(found.scale)
    whole = ReshapeOp(found.scale, [*[1] * (len(order) - len(shape)), *shape])
    scale = TransposeOp(whole.result, order)
    return Dequantized(numbers.result, scale.result, (*found.moves, numbers, whole, scale))


__all__ = ["LARGEST", "Dequantized", "dequantized", "is_byte_difference"]
