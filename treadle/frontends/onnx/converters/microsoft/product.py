"""Products of matrices, some of which are transposed."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.products import matmul
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(node: Node, g: GraphBuilder) -> Tensor:
    """`alpha * A' B'`, each operand with its last dimensions swapped, or its first one moved behind the batch, or
    both; the second name is that of earlier versions."""
    a, b = (_turned(node, g, n) for n in (0, 1))
    alpha, product = node.float("alpha", 1.0), matmul(g, a, b)
    return product if alpha == 1 else g.mul(product, alpha)


def _turned(node: Node, g: GraphBuilder, index: int) -> Tensor:
    x, name = node.input(index), "AB"[index]
    swapped, moved = node.flag(f"trans{name}"), node.flag(f"transBatch{name}")
    if x.rank == 0:
        raise node.error("an operand has rank 0", "rank 1 and more")
    if x.rank == 1:
        return x
    order = [*range(1, x.rank - 1), 0, x.rank - 1] if moved else list(range(x.rank))
    return g.transpose(x, [*order[:-2], order[-1], order[-2]] if swapped else order)
