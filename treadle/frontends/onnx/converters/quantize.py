"""Quantisation to integers of 2 to 16 bits and floats of 4 and 8, products and convolutions of what it gives."""

from __future__ import annotations

from xdsl.dialects.builtin import f32, i8, i16, i32
from xdsl.ir import Attribute

from treadle.dialects.graph.dtypes import (
    SMALL_FLOATS,
    STORED_FLOATS,
    element_type,
    f8e8m0fnu,
    i2,
    i4,
    integer_limits,
    is_float,
    is_stored,
    ui2,
    ui4,
    ui8,
    ui16,
)
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.elementwise import saturated
from treadle.frontends.onnx.converters.linear import convolution, matmul, plus_bias
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.tensor_data import dtype_of

QUANTIZED_FLOATS = tuple(type for type in STORED_FLOATS if type != f8e8m0fnu)
QUANTIZED = (i2, ui2, i4, ui4, i8, ui8, i16, ui16)
_NAMES = "(u)int2, (u)int4, (u)int8, (u)int16, float4e2m1, float8e4m3fn(uz) or float8e5m2(fnuz)"
_BYTES = (i8, ui8)


@converts("QuantizeLinear", since=10)
def quantize_linear(node: Node, g: GraphBuilder) -> Tensor:
    """`round(x / scale) + zero point`, halves to even, the nearest number of the type for what lies beyond.

    Floats of 4 and 8 bits are rounded once, after the zero point was added.
    """
    node.ignore("precision")
    saturate = node.flag("saturate", True)
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    to = _quantized_type(node, zero)
    wide = g.cast(g.widened(x), f32)
    quotient = g.div(wide, _spread(node, g, g.cast(scale, f32), x))
    spread = None if zero is None else _spread(node, g, zero, x)
    if is_float(to):
        # A zero point of 0 keeps the sign of a zero.
        value = quotient if spread is None else g.sub(quotient, g.sub(g.scalar(0, quotient), g.cast(spread, f32)))
        return g.cast(saturated(g, value, to) if saturate else value, to)
    return rounded(g, quotient, spread, to)


def _quantized_type(node: Node, zero: Tensor | None) -> Attribute:
    number = node.int("output_dtype", 0)
    to = zero.element if zero is not None else ui8
    if number:
        to = element_type(dtype_of(number, node.where))
    if to not in (*QUANTIZED, *QUANTIZED_FLOATS):
        raise node.error(f"a result of {to}", f"a zero point or output_dtype of {_NAMES}")
    return to


def rounded(g: GraphBuilder, x: Tensor, zero: Tensor | None, to: Attribute) -> Tensor:
    """Floats to the nearest integers, halves to even, plus a zero point, as the nearest numbers of a type."""
    whole = g.unary("round", x)
    total = whole if zero is None else g.add(whole, g.cast(zero, x.element))
    if is_stored(to):  # a cast would keep the low bits of what lies beyond
        lowest, highest = integer_limits(to)
        total = g.binary("min", g.binary("max", total, lowest), highest)
    return g.cast(total, to)


@converts("DequantizeLinear", since=10)
def dequantize_linear(node: Node, g: GraphBuilder) -> Tensor:
    """`(x - zero point) * scale`, in the type of the scale or the one that is asked for."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    number = node.int("output_dtype", 0)
    to = element_type(dtype_of(number, node.where)) if number else scale.element
    if x.element not in (*QUANTIZED, *QUANTIZED_FLOATS, i32):
        raise node.error(f"an input of {x.element}", f"{_NAMES} or int32")
    wide = f32 if x.is_float else i32
    # Weights stay as they are: they may be multiplied so.
    value = g.cast(_kept(g, x) if x.element in (*_BYTES, *SMALL_FLOATS) and x.rank > 1 else x, wide)
    if zero is not None:
        value = g.sub(value, g.cast(_spread(node, g, zero, x), wide))
    return g.cast(g.mul(g.cast(value, f32), _spread(node, g, g.cast(scale, f32), x)), to)


def _kept(g: GraphBuilder, x: Tensor) -> Tensor:
    """A tensor that no operator is folded with while importing: passes see what is computed of it."""
    return Tensor(x.type, None, g.value(x), None, x.extents)


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
    return integer_product(node, g, node.input(0), node.optional(2), node.input(1), node.optional(3))


def integer_product(node: Node, g: GraphBuilder, a: Tensor, za: Tensor | None, b: Tensor, zb: Tensor | None) -> Tensor:
    """A zero point of a row is a column of the left operand, that of a column a row of the right one."""
    if not {a.element, b.element} <= set(_BYTES) or min(a.rank, b.rank) < 2:
        raise node.error(f"a product of {a.type} and {b.type}", "int8 and uint8, of rank 2 and more")
    if za is not None and za.rank == 1:
        za = g.reshape(za, (*za.shape, 1))
    return matmul(g, _centred(g, a, za, i32), _centred(g, b, zb, i32))


def _centred(g: GraphBuilder, x: Tensor, zero: Tensor | None, wide: Attribute) -> Tensor:
    """Quantised numbers less their zero points, in a type that holds them."""
    return g.cast(x, wide) if zero is None else g.sub(g.cast(x, wide), g.cast(zero, wide))


@converts("QLinearMatMul", since=10)
def qlinear_matmul(node: Node, g: GraphBuilder) -> Tensor:
    """The product of quantised matrices, quantised again."""
    a, b = node.input(0), node.input(3)
    product = integer_product(node, g, a, node.input(2), b, node.input(5))
    scales = [g.cast(node.input(n), f32) for n in (1, 4, 6)]
    of_rows = g.reshape(scales[0], (*scales[0].shape, 1)) if scales[0].rank == 1 else scales[0]
    return _requantized(node, g, product, g.div(g.mul(of_rows, scales[1]), scales[2]))


def _requantized(node: Node, g: GraphBuilder, total: Tensor, factor: Tensor) -> Tensor:
    """An int32 times a factor, in the type of the result's zero point."""
    zero = node.input(7)
    if zero.element not in QUANTIZED:
        raise node.error(f"a result of {zero.element}", "(u)int8 or (u)int16")
    return rounded(g, g.mul(g.cast(total, f32), factor), zero, zero.element)


@converts("ConvInteger", since=10)
def conv_integer(node: Node, g: GraphBuilder) -> Tensor:
    """The convolution of integers less their zero points, as int32."""
    return _integer_convolution(node, g, node.input(0), node.optional(2), node.input(1), node.optional(3))


def _integer_convolution(
    node: Node, g: GraphBuilder, x: Tensor, zx: Tensor | None, w: Tensor, zw: Tensor | None
) -> Tensor:
    """Padding is zeros, which are the zero point."""
    if not {x.element, w.element} <= set(_BYTES):
        raise node.error(f"a convolution of {x.type} and {w.type}", "int8 and uint8")
    zx = None if zx is None else g.reshape(zx, ())
    zw = None if zw is None else _of_outputs(g, zw, w.rank - 1)
    return convolution(node, g, _centred(g, x, zx, i32), _centred(g, _kept(g, w), zw, i32))


def _of_outputs(g: GraphBuilder, parameter: Tensor, inner: int) -> Tensor:
    """One number, or one for each output channel, before so many dimensions that it is broadcast over."""
    return g.reshape(parameter, () if parameter.shape in ((), (1,)) else (*parameter.shape, *[1] * inner))


@converts("QLinearConv", since=10)
def qlinear_conv(node: Node, g: GraphBuilder) -> Tensor:
    """The convolution of quantised images, with an int32 bias, quantised again."""
    x, w = node.input(0), node.input(3)
    total = plus_bias(g, _integer_convolution(node, g, x, node.input(2), w, node.input(5)), node.optional(8))
    scales = [g.cast(node.input(n), f32) for n in (1, 4, 6)]
    of_input, of_result = (g.reshape(scales[n], ()) for n in (0, 2))
    factor = g.div(g.mul(of_input, _of_outputs(g, scales[1], w.rank - 2)), of_result)
    return _requantized(node, g, total, factor)
