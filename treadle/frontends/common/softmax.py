"""Softmax and its logarithm."""

from __future__ import annotations

from treadle.dialects.graph import SoftmaxOp
from treadle.frontends.common.builder import GraphBuilder, Tensor


def softmax_along(g: GraphBuilder, x: Tensor, dim: int, log: bool) -> Tensor:
    """Softmax along a dimension, or its logarithm."""
    if not log:
        return g.emit(lambda v: SoftmaxOp(v[0], dim), x)
    wide = g.widened(x)
    shifted = g.sub(wide, g.reduce("max", wide, [dim], keep=True))
    total = g.reduce("add", g.unary("exp", shifted), [dim], keep=True)
    return g.cast(g.sub(shifted, g.unary("log", total)), x.element)


__all__ = ["softmax_along"]
