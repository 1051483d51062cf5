"""Quantised operators that ONNX Runtime's quantiser writes."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Attribute

from treadle.dialects.graph.dtypes import ui8
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.softmax import softmax_along
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.converters.microsoft.attention import projected_attention
from treadle.frontends.onnx.converters.pool import average_pool, max_pool
from treadle.frontends.onnx.converters.quantize import (
    dequantize_linear,
    integer_product,
    quantize_linear,
    rounded,
)
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

converts("QuantizeLinear", domain=DOMAIN)(quantize_linear)
converts("DequantizeLinear", domain=DOMAIN)(dequantize_linear)


@converts("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(node: Node, g: GraphBuilder) -> Tensor:
    """The product of a matrix that is quantised by its own range, and a quantised one, in floats."""
    y = dynamically_quantized_product(node, g, node.input(0), node.input(1), node.input(2), node.optional(3))
    bias = node.optional(4)
    return y if bias is None else g.add(y, bias)


def dynamically_quantized_product(
    node: Node, g: GraphBuilder, x: Tensor, matrix: Tensor, scale: Tensor, zero: Tensor | None
) -> Tensor:
    """`x` is quantised by its own range, `matrix` has a scale and a zero point, or one of each a column."""
    q, of_rows, middle = dynamically_quantized(g, x)
    product = integer_product(node, g, q, middle, matrix, zero)
    return _in_floats(g, product, of_rows, scale, None)


def dynamically_quantized(g: GraphBuilder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ONNX's DynamicQuantizeLinear: bytes, their scale, and their zero point, by the range of elements and 0."""
    dims = list(range(x.rank))
    low = g.binary("min", g.reduce("min", x, dims, keep=False), 0)
    high = g.binary("max", g.reduce("max", x, dims, keep=False), 0)
    scale = g.div(g.sub(high, low), 255)
    scale = g.where(g.binary("eq", scale, 0), g.scalar(1, scale), scale)
    zero = g.unary("round", g.sub(g.scalar(0, scale), g.div(low, scale)))
    return g.cast(g.add(g.unary("round", g.div(x, scale)), zero), ui8), scale, g.cast(zero, ui8)


@converts("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(node: Node, g: GraphBuilder) -> Tensor:
    """The product of quantised matrices, in floats."""
    product = integer_product(node, g, node.input(0), node.optional(4), node.input(1), node.optional(5))
    return _in_floats(g, product, node.input(2), node.input(3), node.optional(6))


def _in_floats(g: GraphBuilder, product: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Integers times the scales of rows and columns; the bias is added in floats."""
    rows = g.reshape(a, (*a.shape, 1)) if a.rank == 1 and a.shape != (1,) else a
    y = g.mul(g.cast(product, f32), g.mul(rows, b))
    return y if bias is None else g.add(y, bias)


@converts("QAttention", domain=DOMAIN)
def quantized_attention(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Attention whose projection is a product of quantised matrices."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.int(name, 0):
            raise node.error(f"attribute '{name}' is {node.int(name, 0)}", "0")
    product = integer_product(node, g, node.input(0), node.optional(6), node.input(1), node.optional(7))
    x = _in_floats(g, product, node.input(3), node.input(4), node.input(2))
    return projected_attention(node, g, x, (5, 8, 10))


@converts("QGemm", domain=DOMAIN)
def quantized_gemm(node: Node, g: GraphBuilder) -> Tensor:
    """`alpha * A' B' + C` of quantised matrices and an int32 C, in floats or quantised again."""
    a, b, c = node.input(0), node.input(3), node.optional(6)
    a = g.transpose(a, (1, 0)) if node.flag("transA") else a
    b = g.transpose(b, (1, 0)) if node.flag("transB") else b
    total = integer_product(node, g, a, node.input(2), b, node.input(5))
    total = total if c is None else g.add(total, c)
    factor = g.mul(g.mul(node.input(1), node.input(4)), node.float("alpha", 1.0))
    y = g.mul(g.cast(total, f32), factor)
    return y if node.optional(7) is None else _quantized(g, y, node.input(7), node.optional(8), a.element)


def _real(g: GraphBuilder, node: Node, first: int) -> Tensor:
    """The floats of a quantised input, whose scale and zero point follow it."""
    x, scale, zero = node.input(first), node.input(first + 1), node.optional(first + 2)
    return _dequantized(g, x, scale, zero)


def _dequantized(g: GraphBuilder, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    wide = g.cast(x, i32)
    centred = wide if zero is None else g.sub(wide, g.cast(g.reshape(zero, ()), i32))
    return g.mul(g.cast(centred, f32), g.reshape(scale, ()))


def _quantized(g: GraphBuilder, x: Tensor, scale: Tensor, zero: Tensor | None, to: Attribute) -> Tensor:
    zero = None if zero is None else g.reshape(zero, ())
    return rounded(g, g.div(x, g.reshape(scale, ())), zero, to)


def _binary(kind: str) -> Callable[[Node, GraphBuilder], Tensor]:
    def convert(node: Node, g: GraphBuilder) -> Tensor:
        y = g.binary(kind, _real(g, node, 0), _real(g, node, 3))
        return _quantized(g, y, node.input(6), node.optional(7), node.input(0).element)

    return convert


converts("QLinearAdd", domain=DOMAIN)(_binary("add"))
converts("QLinearMul", domain=DOMAIN)(_binary("mul"))


def _requantized(node: Node, g: GraphBuilder, y: Tensor) -> Tensor:
    """A function of the first input, in the scale and the zero point of inputs 3 and 4."""
    return _quantized(g, y, node.input(3), node.optional(4), node.input(0).element)


@converts("QLinearSigmoid", domain=DOMAIN)
def quantized_sigmoid(node: Node, g: GraphBuilder) -> Tensor:
    """Of each element."""
    return _requantized(node, g, g.unary("sigmoid", _real(g, node, 0)))


@converts("QLinearLeakyRelu", domain=DOMAIN)
def quantized_leaky_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * x : x`."""
    x = _real(g, node, 0)
    return _requantized(node, g, g.where(g.binary("lt", x, 0), g.mul(x, node.float("alpha", 0.01)), x))


@converts("QLinearSoftmax", domain=DOMAIN)
def quantized_softmax(node: Node, g: GraphBuilder) -> Tensor:
    """Along one dimension, as from opset 13 on."""
    if node.int("opset", 13) < 13:
        raise node.error(f"attribute 'opset' is {node.int('opset', 13)}", "13 and later")
    x = _real(g, node, 0)
    return _requantized(node, g, softmax_along(g, x, node.axis(node.int("axis", -1), x.rank), log=False))


@converts("QLinearGlobalAveragePool", domain=DOMAIN)
def quantized_global_average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The mean of each channel of each image."""
    x, last = _real(g, node, 0), node.flag("channels_last")
    if x.rank < 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3 and more")
    dims = range(1, x.rank - 1) if last else range(2, x.rank)
    return _requantized(node, g, g.reduce("mean", x, dims, keep=True))


@converts("QLinearAveragePool", domain=DOMAIN)
def quantized_average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The mean of each window."""
    x, last = _real(g, node, 0), node.flag("channels_last")
    moved = _channels_first(g, x) if last else x
    y = average_pool(node.of(moved), g)
    return _requantized(node, g, _channels_last(g, y) if last else y)


@converts("QLinearConcat", domain=DOMAIN)
def quantized_concat(node: Node, g: GraphBuilder) -> Tensor:
    """Each operand with its scale and zero point; the result's come first."""
    if len(node) < 5 or (len(node) - 2) % 3:
        raise node.error(f"{len(node)} inputs", "a scale and a zero point, then three inputs for each operand")
    parts = [_real(g, node, n) for n in range(2, len(node), 3)]
    y = g.concat(parts, node.axis(node.int("axis", 0), parts[0].rank))
    return _quantized(g, y, node.input(0), node.input(1), node.input(2).element)


@converts("NhwcMaxPool", domain=DOMAIN)
def nhwc_max_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The largest number of each window, of images whose channels come last."""
    return _channels_last(g, max_pool(node.of(_channels_first(g, node.input())), g)[0])


def _channels_first(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def _channels_last(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.transpose(x, (0, *range(2, x.rank), 1))
