"""From the type in which a fold is carried back to that of its elements."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Attribute

from treadle.dialects.graph.definition import Scalar
from treadle.schedules.kernel_builder import KernelBuilder


def narrowed(b: KernelBuilder, value: Scalar, type: Attribute) -> Scalar:
    """A fold in the type of the definition's reduction."""
    if value.type == type:
        return value
    return b.insert(arith.TruncFOp(value, type))  # pyright: ignore[reportArgumentType]
