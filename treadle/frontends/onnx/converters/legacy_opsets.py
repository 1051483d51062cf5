"""Operators before opset 7, where an attribute, not NumPy's rule, said how the second operand is repeated."""

from __future__ import annotations

from collections.abc import Callable

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters import activation, linear
from treadle.frontends.onnx.converters.elementwise import power
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
    "Equal": "eq", "Greater": "gt", "Less": "lt",
}  # fmt: skip


def _aligned(node: Node, g: GraphBuilder) -> Tensor:
    """The second operand: of the first one's shape, or with `broadcast` of consecutive dimensions of it, which begin at
    `axis`, by default the last ones."""
    node.ignore("consumed_inputs")
    a, b = node.input(0), node.input(1)
    if not node.flag("broadcast"):
        node.ignore("axis")
        if a.shape != b.shape:
            raise node.error(f"operands of shapes {a.shape} and {b.shape}", "one shape, or broadcast = 1")
        return b
    axis = node.int("axis", a.rank - b.rank)
    if not 0 <= axis <= a.rank - b.rank:
        raise node.error(f"axis {axis} of operands of rank {a.rank} and {b.rank}", "the first dimension of the second")
    return g.reshape(b, (*b.shape, *[1] * (a.rank - axis - b.rank)))


def _binary(kind: str) -> Callable[[Node, GraphBuilder], Tensor]:
    return lambda node, g: g.binary(kind, node.input(0), _aligned(node, g))


for _name, _kind in _BINARY.items():
    converts(_name)(_binary(_kind))


@converts("Pow")
def pow_aligned(node: Node, g: GraphBuilder) -> Tensor:
    """The exponent takes the base's type."""
    return power(node.of(node.input(0), _aligned(node, g)), g)


@converts("PRelu")
def p_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? slope * x : x`, of one slope, or one for each channel."""
    node.ignore("consumed_inputs")
    x, slope = node.input(0), node.input(1)
    if slope.rank == 1 and slope.shape != (1,):
        slope = g.reshape(slope, (*slope.shape, *[1] * (x.rank - 2)))
    return g.where(g.binary("lt", x, 0), g.mul(x, slope), x)


@converts("Gemm")
def gemm(node: Node, g: GraphBuilder) -> Tensor:
    """With `broadcast`, C is repeated as NumPy does."""
    node.ignore("broadcast")
    return linear.gemm(node, g)


@converts("BatchNormalization")
def batch_norm(node: Node, g: GraphBuilder) -> Tensor:
    """By the running statistics: `is_test` has to be 1."""
    node.ignore("consumed_inputs")
    if not node.flag("is_test"):
        raise node.error("attribute 'is_test' is 0", "1: inference")
    return activation.by_running_statistics(node, g)
