"""Products of matrices, and convolutions."""

from __future__ import annotations

from treadle.dialects.graph import ConvOp, ConvTransposeOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.products import matmul, plus_bias
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


@converts("mm.default", "bmm.default", "mv.default")
def product(c: Call, g: GraphBuilder) -> Tensor:
    """Of matrices, of batches of them, or of a matrix and a vector."""
    second = "vec" if c.name.startswith("mv") else "mat2"
    return matmul(g, c.tensor(), c.tensor(second))


@converts("matmul.default")
def any_product(c: Call, g: GraphBuilder) -> Tensor:
    """NumPy's matmul."""
    return matmul(g, c.tensor(), c.tensor("other"))


@converts("dot.default")
def dot(c: Call, g: GraphBuilder) -> Tensor:
    """Of two vectors."""
    return matmul(g, c.tensor(), c.tensor("tensor"))


@converts("linear.default")
def linear(c: Call, g: GraphBuilder) -> Tensor:
    """`x W' + b`."""
    weight, bias = c.tensor("weight"), c.optional("bias")
    y = matmul(g, c.tensor("input"), g.transpose(weight, (1, 0)) if weight.rank == 2 else weight)
    return y if bias is None else g.add(y, bias)


@converts("addmm.default", "baddbmm.default")
def addmm(c: Call, g: GraphBuilder) -> Tensor:
    """`beta * self + alpha * A B`."""
    first, second = ("mat1", "mat2") if c.name.startswith("addmm") else ("batch1", "batch2")
    y = matmul(g, c.tensor(first), c.tensor(second))
    alpha, beta = c.value("alpha"), c.value("beta")
    y = y if alpha == 1 else g.mul(y, alpha)
    if beta == 0:
        return y
    return g.add(y, c.tensor() if beta == 1 else g.mul(c.tensor(), beta))


@converts("convolution.default")
def convolution(c: Call, g: GraphBuilder) -> Tensor:
    """The bias is an addition of its own."""
    x, w = c.tensor("input"), c.tensor("weight")
    rank = x.rank - 2
    strides, padding, dilations = (c.ints(name, rank) for name in ("stride", "padding", "dilation"))
    groups = c.int("groups")
    if not c.flag("transposed"):
        pads = padding * 2
        y = g.emit(lambda v: ConvOp(v[0], v[1], strides, pads, dilations, groups), x, w)
    else:
        extra = c.ints("output_padding", rank)
        y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], strides, padding * 2, dilations, groups, extra), x, w)
    return plus_bias(g, y, c.optional("bias"))
