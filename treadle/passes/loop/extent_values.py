"""Extents as values in a kernel."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, i64
from xdsl.ir import Operation, SSAValue

from treadle.dialects.loop import LoadOp
from treadle.index.expr import Expr, var


def read_extent(buffer: SSAValue, bound: int) -> tuple[Expr, list[Operation]]:
    """An extent that a buffer of one i64 holds, clamped to 0..bound, and the operations that read it."""
    load = LoadOp(buffer, [])
    limit = arith.ConstantOp(IntegerAttr(bound, i64))
    least = arith.MinSIOp(load.result, limit.result)
    zero = arith.ConstantOp(IntegerAttr(0, i64))
    clamped = arith.MaxSIOp(least.result, zero.result)
    cast = arith.IndexCastOp(clamped.result, IndexType())
    cast.result.name_hint = buffer.name_hint
    return var(cast.result, 0, bound), [load, limit, least, zero, clamped, cast]


__all__ = ["read_extent"]
