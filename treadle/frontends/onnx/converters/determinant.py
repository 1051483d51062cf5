"""Det: elimination with partial pivoting, each step written out.

Source: Golub and Van Loan, "Matrix computations", 4th edition, algorithm 3.4.1.
"""

from __future__ import annotations

from math import prod

import numpy as np

from treadle.dialects.graph import ArgReductionOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

LARGEST = 128
"""Rows: each is a dozen operators."""


@converts("Det", since=11)
def determinant(node: Node, g: GraphBuilder) -> Tensor:
    """`[..., n, n]` to `[...]`: the product of the pivots, with the sign of the permutation."""
    x = node.input()
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not 1 <= x.shape[-1] <= LARGEST:
        raise node.error(f"an input of shape {x.shape}", f"matrices of as many rows as columns, 1 to {LARGEST}")
    lead, n = x.shape[:-2], x.shape[-1]
    rest = g.reshape(g.widened(x), (prod(lead), n, n))
    result: Tensor | None = None
    for size in range(n, 0, -1):
        pivot, rest = _eliminated(g, rest, size)
        result = pivot if result is None else g.mul(result, pivot)
    assert result is not None
    return g.cast(g.reshape(result, lead), x.element)


def _eliminated(g: GraphBuilder, a: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The pivot `[B]` of matrices `[B, size, size]`, its sign changed if its row was not the first, and what is left of
    the other rows. Without a pivot, where the column is zeros, they do not count."""
    if size == 1:
        return g.reshape(a, a.shape[:1]), a
    batch = a.shape[0]
    column = g.unary("abs", g.reshape(g.narrow(a, 2, 0, 1), (batch, size)))
    row = g.emit(lambda v: ArgReductionOp("max", v[0], 1, True), column)
    places = g.constant(np.arange(size)[None])
    chosen = g.reshape(g.binary("eq", row, places), (batch, size, 1))
    first = g.narrow(a, 1, 0, 1)
    # One term of each sum is none of zeros.
    pivots = g.reduce("add", g.where(chosen, a, g.scalar(0, a)), [1], keep=True)
    others = g.narrow(g.where(chosen, first, a), 1, 1, size - 1)
    pivot = g.narrow(pivots, 2, 0, 1)
    divisor = g.where(g.binary("eq", pivot, 0), g.scalar(1, pivot), pivot)
    factors = g.div(g.narrow(others, 2, 0, 1), divisor)
    rest = g.sub(g.narrow(others, 2, 1, size - 1), g.mul(factors, g.narrow(pivots, 2, 1, size - 1)))
    value = g.reshape(pivot, (batch,))
    moved = g.binary("ne", g.reshape(row, (batch,)), 0)
    return g.where(moved, g.unary("neg", value), value), rest
