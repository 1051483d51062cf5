"""Activations, and what is fused with them: FusedGemm, FusedConv."""

from __future__ import annotations

from treadle.frontends.common.activation import softplus
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.linear import convolution, gemm, plus_bias
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

_ACTIVATIONS = ("", "Relu", "Tanh", "Sigmoid", "Softplus", "LeakyRelu", "Clip", "HardSigmoid", "Elu")


@converts("Gelu", domain=DOMAIN)
def gelu(node: Node, g: GraphBuilder) -> Tensor:
    """The exact one."""
    return g.unary("gelu", node.input())


@converts("BiasGelu", domain=DOMAIN)
def bias_gelu(node: Node, g: GraphBuilder) -> Tensor:
    """Of a sum, exact."""
    return g.unary("gelu", g.add(node.input(0), node.input(1)))


@converts("FastGelu", domain=DOMAIN)
def fast_gelu(node: Node, g: GraphBuilder) -> Tensor:
    """The approximation by tanh, of a sum if there is a bias."""
    x, bias = node.input(), node.optional(1)
    return g.unary("gelu_tanh", x if bias is None else g.add(x, bias))


@converts("QuickGelu", domain=DOMAIN)
def quick_gelu(node: Node, g: GraphBuilder) -> Tensor:
    """`x * sigmoid(alpha * x)`."""
    x = node.input()
    return g.mul(x, g.unary("sigmoid", g.mul(x, node.float("alpha", 1.702))))


@converts("FusedGemm", domain=DOMAIN)
def fused_gemm(node: Node, g: GraphBuilder) -> Tensor:
    """A Gemm, then an activation."""
    given = [node.optional_float(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return _activated(node, g, gemm(node, g), [value for value in given if value is not None])


@converts("FusedConv", domain=DOMAIN)
def fused_conv(node: Node, g: GraphBuilder) -> Tensor:
    """A convolution, the addition of a tensor, then an activation."""
    x, added = plus_bias(g, convolution(node, g, node.input(0), node.input(1)), node.optional(2)), node.optional(3)
    return _activated(node, g, x if added is None else g.add(x, added), node.floats("activation_params") or [])


def _activated(node: Node, g: GraphBuilder, x: Tensor, parameters: list[float]) -> Tensor:
    """What the attribute `activation` says, of parameters that have to be there."""
    kind = node.string("activation", "", _ACTIVATIONS)
    wanted = {"LeakyRelu": 1, "Elu": 1, "Clip": 2, "HardSigmoid": 2}.get(kind, 0)
    if len(parameters) < wanted:
        raise node.error(f"{len(parameters)} parameters of the activation {kind}", f"{wanted} parameters")
    first, second = [*parameters, 0.0, 0.0][:2]
    if kind in ("Relu", "Tanh", "Sigmoid"):
        return g.unary(kind.lower(), x)
    if kind == "Softplus":
        return softplus(g, x)
    if kind == "LeakyRelu":
        return g.where(g.binary("lt", x, 0), g.mul(x, first), x)
    if kind == "Elu":
        return g.where(g.binary("lt", x, 0), g.mul(g.sub(g.unary("exp", x), 1), first), x)
    if kind == "Clip":
        return g.binary("min", g.binary("max", x, first), second)
    if kind == "HardSigmoid":
        return g.binary("min", g.binary("max", g.add(g.mul(x, first), second), 0), 1)
    return x
