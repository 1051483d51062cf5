"""Quantisation to integers of 8 and 16 bits: QuantizeLinear, DequantizeLinear, QLinearMatMul, MatMulInteger."""

from __future__ import annotations

from xdsl.dialects.builtin import f32, i8, i16, i32
from xdsl.ir import Attribute

from treadle.dialects.graph.dtypes import element_type, ui8, ui16
from treadle.frontends.onnx.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.linear import matmul
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts
from treadle.frontends.onnx.tensor_data import dtype_of

QUANTIZED = (i8, ui8, i16, ui16)


@converts("QuantizeLinear", since=10)
def quantize_linear(node: Node, g: GraphBuilder) -> Tensor:
    """`round(x / scale) + zero point`, halves to even, the nearest number of the type for what lies beyond."""
    node.ignore("saturate", "precision")
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    to = _quantized_type(node, zero)
    wide = g.cast(g.widened(x), f32)
    quotient = g.div(wide, _spread(node, g, g.cast(scale, f32), x))
    return _rounded(g, quotient, None if zero is None else _spread(node, g, zero, x), to)


def _quantized_type(node: Node, zero: Tensor | None) -> Attribute:
    number = node.int("output_dtype", 0)
    to = zero.element if zero is not None else ui8
    if number:
        to = element_type(dtype_of(number, node.where))
    if to not in QUANTIZED:
        raise node.error(f"a result of {to}", "a zero point or output_dtype of (u)int8 or (u)int16")
    return to


def _rounded(g: GraphBuilder, x: Tensor, zero: Tensor | None, to: Attribute) -> Tensor:
    whole = g.unary("round", x)
    return g.cast(whole if zero is None else g.add(whole, g.cast(zero, x.element)), to)


@converts("DequantizeLinear", since=10)
def dequantize_linear(node: Node, g: GraphBuilder) -> Tensor:
    """`(x - zero point) * scale`, in the type of the scale or the one that is asked for."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    number = node.int("output_dtype", 0)
    to = element_type(dtype_of(number, node.where)) if number else scale.element
    if x.element not in (*QUANTIZED, i32):
        raise node.error(f"an input of {x.element}", "(u)int8, (u)int16 or int32")
    value = g.cast(x, i32)
    if zero is not None:
        value = g.sub(value, g.cast(_spread(node, g, zero, x), i32))
    return g.cast(g.mul(g.cast(value, f32), _spread(node, g, g.cast(scale, f32), x)), to)


def _spread(node: Node, g: GraphBuilder, parameter: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point of all elements, of each slice along the axis, or of blocks along it, to be broadcast."""
    axis, block = node.int("axis", 1), node.int("block_size", 0)
    if parameter.shape in ((), (1,)) and not block:
        return g.reshape(parameter, ())
    axis = node.axis(axis, x.rank)
    extent = x.shape[axis]
    if not block:
        if parameter.shape != (extent,):
            raise node.error(f"a scale or zero point of shape {parameter.shape}", f"() or ({extent},)")
        return g.reshape(parameter, (extent, *[1] * (x.rank - axis - 1)))
    blocks = -(-extent // block) if block > 0 else 0
    expected = (*x.shape[:axis], blocks, *x.shape[axis + 1 :])
    if block < 1 or parameter.shape != expected:
        raise node.error(f"a scale or zero point of shape {parameter.shape}, block_size {block}", f"{expected}")
    split = g.reshape(parameter, (*x.shape[:axis], blocks, 1, *x.shape[axis + 1 :]))
    spread = g.broadcast(split, (*x.shape[:axis], blocks, block, *x.shape[axis + 1 :]))
    whole = g.reshape(spread, (*x.shape[:axis], blocks * block, *x.shape[axis + 1 :]))
    return g.narrow(whole, axis, 0, extent)


@converts("MatMulInteger", since=10)
def matmul_integer(node: Node, g: GraphBuilder) -> Tensor:
    """The product of integers less their zero points, as int32."""
    return _integer_product(node, g, node.input(0), node.optional(2), node.input(1), node.optional(3))


def _integer_product(node: Node, g: GraphBuilder, a: Tensor, za: Tensor | None, b: Tensor, zb: Tensor | None) -> Tensor:
    """A zero point of a row is a column of the left operand, that of a column a row of the right one."""
    if a.element not in (i8, ui8) or b.element not in (i8, ui8) or min(a.rank, b.rank) < 2:
        raise node.error(f"a product of {a.type} and {b.type}", "int8 and uint8, of rank 2 and more")
    left, right = g.cast(a, i32), g.cast(b, i32)
    if za is not None:
        left = g.sub(left, g.cast(g.reshape(za, (*za.shape, 1)) if za.rank == 1 else za, i32))
    if zb is not None:
        right = g.sub(right, g.cast(zb, i32))
    return matmul(g, left, right)


@converts("QLinearMatMul", since=10)
def qlinear_matmul(node: Node, g: GraphBuilder) -> Tensor:
    """The product of quantised matrices, quantised again."""
    a, b, zero = node.input(0), node.input(3), node.input(7)
    product = _integer_product(node, g, a, node.input(2), b, node.input(5))
    scales = [g.cast(node.input(n), f32) for n in (1, 4, 6)]
    of_rows = g.reshape(scales[0], (*scales[0].shape, 1)) if scales[0].rank == 1 else scales[0]
    factor = g.div(g.mul(of_rows, scales[1]), scales[2])
    if zero.element not in QUANTIZED:
        raise node.error(f"a result of {zero.element}", "(u)int8 or (u)int16")
    return _rounded(g, g.mul(g.cast(product, f32), factor), zero, zero.element)
