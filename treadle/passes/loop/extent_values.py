"""Extents as values in a kernel."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, i64
from xdsl.ir import Operation, SSAValue

from treadle.dialects.loop import LoadOp
from treadle.index.expr import Expr, var


def read_extent(buffer: SSAValue, bound: int, least: int = 0) -> tuple[Expr, list[Operation]]:
    """An extent that a buffer of one i64 holds, clamped to least..bound, and the operations that read it."""
    load = LoadOp(buffer, [])
    limit = arith.ConstantOp(IntegerAttr(bound, i64))
    lower = arith.MinSIOp(load.result, limit.result)
    first = arith.ConstantOp(IntegerAttr(least, i64))
    clamped = arith.MaxSIOp(lower.result, first.result)
    cast = arith.IndexCastOp(clamped.result, IndexType())
    cast.result.name_hint = buffer.name_hint
    return var(cast.result, least, bound), [load, limit, lower, first, clamped, cast]


__all__ = ["read_extent"]
