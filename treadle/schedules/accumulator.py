"""The type in which a fold is carried: sums of 16-bit floats run in f32, and are rounded once."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import BFloat16Type, Float16Type, f32
from xdsl.ir import Attribute

from treadle.dialects.graph.definition import Scalar
from treadle.schedules.kernel_builder import KernelBuilder


def accumulator(type: Attribute) -> Attribute:
    """The type that a fold of elements of `type` is carried in."""
    return f32 if isinstance(type, Float16Type | BFloat16Type) else type


def narrowed(b: KernelBuilder, value: Scalar, type: Attribute) -> Scalar:
    """A fold in the type of the definition's reduction."""
    if value.type == type:
        return value
    return b.insert(arith.TruncFOp(value, type))  # pyright: ignore[reportArgumentType]
