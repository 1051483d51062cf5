"""Activation functions of several operators."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor


def softplus(g: GraphBuilder, x: Tensor) -> Tensor:
    """`max(x, 0) + log(1 + exp(-|x|))`, which does not overflow."""
    tail = g.unary("exp", g.unary("neg", g.unary("abs", x)))
    return g.add(g.unary("relu", x), g.unary("log", g.add(tail, 1)))


__all__ = ["softplus"]
