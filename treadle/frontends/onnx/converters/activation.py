"""Activation functions, written with unary, binary and where."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import f64

from treadle.dialects.graph.dtypes import integer_limits
from treadle.frontends.common.activation import softplus
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.elementwise import clip
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


def _bounded(g: GraphBuilder, x: Tensor, low: float, high: float) -> Tensor:
    return clip(g, x, g.scalar(low, x), g.scalar(high, x))


def _negative_part(g: GraphBuilder, x: Tensor, negative: Tensor) -> Tensor:
    """`x < 0 ? negative : x`."""
    return g.where(g.binary("lt", x, 0), negative, x)


def _exp_minus_one(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.sub(g.unary("exp", x), 1)


@converts("HardSigmoid", since=6)
def hard_sigmoid(node: Node, g: GraphBuilder) -> Tensor:
    """`max(0, min(1, alpha * x + beta))`."""
    x = node.input()
    line = g.add(g.mul(x, node.float("alpha", 0.2)), node.float("beta", 0.5))
    return _bounded(g, line, 0, 1)


@converts("HardSwish", since=14)
def hard_swish(node: Node, g: GraphBuilder) -> Tensor:
    """`x * max(0, min(1, x / 6 + 0.5))`."""
    x = node.input()
    return g.mul(x, _bounded(g, g.add(g.mul(x, 1 / 6), 0.5), 0, 1))


@converts("LeakyRelu", since=6)
def leaky_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * x : x`."""
    x = node.input()
    return _negative_part(g, x, g.mul(x, node.float("alpha", 0.01)))


@converts("PRelu", since=7)
def p_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? slope * x : x`, the slope broadcast to x."""
    x = node.input(0)
    return _negative_part(g, x, g.mul(x, node.input(1)))


@converts("ThresholdedRelu", since=10)
def thresholded_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x > alpha ? x : 0`."""
    x = node.input()
    return g.where(g.binary("gt", x, node.float("alpha", 1.0)), x, g.scalar(0, x))


@converts("Elu", since=6)
def elu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * (exp(x) - 1) : x`."""
    x = node.input()
    return _negative_part(g, x, g.mul(_exp_minus_one(g, x), node.float("alpha", 1.0)))


@converts("Celu", since=12)
def celu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * (exp(x / alpha) - 1) : x`."""
    x, alpha = node.input(), node.float("alpha", 1.0)
    return _negative_part(g, x, g.mul(_exp_minus_one(g, g.div(x, alpha)), alpha))


@converts("Selu", since=6)
def selu(node: Node, g: GraphBuilder) -> Tensor:
    """`gamma * (x > 0 ? x : alpha * (exp(x) - 1))`."""
    x = node.input()
    alpha, gamma = (
        node.float("alpha", 1.67326319217681884765625),
        node.float("gamma", 1.05070102214813232421875),
    )
    return g.mul(_negative_part(g, x, g.mul(_exp_minus_one(g, x), alpha)), gamma)


@converts("Gelu", since=20)
def gelu(node: Node, g: GraphBuilder) -> Tensor:
    """Exact, or with its tanh approximation."""
    tanh = node.string("approximate", "none", ("none", "tanh")) == "tanh"
    return g.unary("gelu_tanh" if tanh else "gelu", node.input())


@converts("Softplus")
def softplus_node(node: Node, g: GraphBuilder) -> Tensor:
    """`log(1 + exp(x))`."""
    return softplus(g, node.input())


@converts("Softsign")
def softsign(node: Node, g: GraphBuilder) -> Tensor:
    """`x / (1 + |x|)`."""
    x = node.input()
    return g.div(x, g.add(g.unary("abs", x), 1))


@converts("Mish", since=18)
def mish(node: Node, g: GraphBuilder) -> Tensor:
    """`x * tanh(softplus(x))`."""
    x = node.input()
    return g.mul(x, g.unary("tanh", softplus(g, x)))


@converts("Swish", since=24)
def swish(node: Node, g: GraphBuilder) -> Tensor:
    """`x * sigmoid(alpha * x)`."""
    x = node.input()
    return g.mul(x, g.unary("sigmoid", g.mul(x, node.float("alpha", 1.0))))


def _holds(x: Tensor, value: float) -> bool:
    """Whether a number and its negative are representable in the element type of `x`."""
    if x.is_float:
        return True
    lowest, highest = integer_limits(x.element)
    return value.is_integer() and lowest <= -abs(value) and abs(value) <= highest


@converts("Shrink", since=9)
def shrink(node: Node, g: GraphBuilder) -> Tensor:
    """`x < -lambd ? x + bias : x > lambd ? x - bias : 0`; for integers, the result is truncated."""
    x, bias, threshold = node.input(), node.float("bias", 0.0), node.float("lambd", 0.5)
    compared = x if _holds(x, threshold) else g.cast(x, f64)
    moved = x if x.is_float or bias.is_integer() else g.cast(x, f64)
    by = g.scalar(bias, moved) if moved.is_float else _modular(g, int(bias), x)
    above = g.where(g.binary("gt", compared, threshold), g.sub(moved, by), g.scalar(0, moved))
    return g.cast(g.where(g.binary("lt", compared, -threshold), g.add(moved, by), above), x.element)


def _modular(g: GraphBuilder, value: int, like: Tensor) -> Tensor:
    """The number of the integer type of `like` that equals a value modulo two to the power of its bits."""
    bits = 8 * like.dtype.itemsize
    return g.constant(np.array(value % (1 << bits), f"uint{bits}").view(like.dtype))
