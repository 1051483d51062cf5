"""Products of matrices and of batches of them, and the bias of each channel."""

from __future__ import annotations

from math import prod

from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.frontends.common.builder import GraphBuilder, Tensor


def matmul(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """NumPy's matmul as `graph.matmul`: vectors become matrices, batch dimensions equal or absent.

    Rows of a batched left operand against one matrix are one long matrix.
    """
    left = g.reshape(a, (1, *a.shape)) if a.rank == 1 else a
    right = g.reshape(b, (*b.shape, 1)) if b.rank == 1 else b
    product = _matrices(g, left, right)
    shape = list(product.shape)
    if b.rank == 1:
        del shape[-1]
    if a.rank == 1:
        del shape[len(shape) - (1 if b.rank == 1 else 2)]
    return g.reshape(product, shape)


def _matrices(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if prod(b.shape[:-2]) == 1 and a.rank > 2:
        rows = g.reshape(a, (prod(a.shape[:-1]), a.shape[-1]))
        return g.reshape(g.matmul(rows, g.reshape(b, b.shape[-2:])), shape)
    if prod(a.shape[:-2]) == 1 and b.rank > 2:
        return g.reshape(g.matmul(g.reshape(a, a.shape[-2:]), b), shape)
    if a.rank > 2:
        a, b = (g.broadcast(v, (*batch, *v.shape[-2:])) for v in (a, b))
    return g.matmul(a, b)


def plus_bias(g: GraphBuilder, y: Tensor, bias: Tensor | None) -> Tensor:
    """A bias of one value a channel."""
    if bias is None:
        return y
    return g.add(y, g.reshape(bias, (1, prod(bias.shape), *[1] * (y.rank - 2))))


__all__ = ["matmul", "plus_bias"]
