"""Conversions to floats of 8 and 4 bits: what ONNX asks for beyond rounding to the nearest one."""

from __future__ import annotations

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute

from treadle.dialects.graph import BitcastOp
from treadle.dialects.graph.dtypes import STORED_FLOATS, f8e8m0fnu, is_float, is_stored, largest, ui8, ui32
from treadle.frontends.common.builder import GraphBuilder, Tensor

ROUNDINGS = ("up", "down", "nearest")

_MANTISSA = 23
_SMALLEST = 1 << (_MANTISSA - 1)
"""The bits of 2^-127, a subnormal float."""


def saturated(g: GraphBuilder, x: Tensor, to: Attribute) -> Tensor:
    """Numbers within those of a type of `STORED_FLOATS`, of which the largest stand for infinities, too; NaN stays.

    Other types: the tensor itself.
    """
    if to not in STORED_FLOATS or x.element == to:
        return x
    wide = x if is_float(x.element) and not is_stored(x.element) else g.cast(x, f32)
    return g.binary("max", g.binary("min", wide, largest(to)), -largest(to))


def powers_of_two(g: GraphBuilder, x: Tensor, saturate: bool, rounding: str) -> Tensor:
    """The size of numbers as powers of two, 2^-127 to 2^127: the exponents of float32, one more where it rounds up.

    saturate: what lies beyond, 0 and infinities included, becomes the nearest power; else NaN, as NaN always does
    rounding: to the next power `up`, `down`, or to the `nearest` one, up halfway

    Source: ONNX, table of Cast; OCP Microscaling Formats (MX) Specification 1.0, 5.4.1.
    """
    size = g.binary("and", _bits(g, g.cast(x, f32), ui32), 0x7FFFFFFF)
    floor = g.div(size, 1 << _MANTISSA)
    below = g.binary("eq", floor, 0)
    # Between 2^-127 and 2^-126 there is one bit less.
    power = g.where(below, g.scalar(_SMALLEST, size), g.binary("and", size, 0xFF << _MANTISSA))
    step = g.where(below, g.scalar(_SMALLEST, size), g.scalar(1 << _MANTISSA, size))
    rest = g.sub(g.binary("max", size, power), power)
    if rounding == "down":
        exponent = floor
    else:
        least = g.scalar(1, size) if rounding == "up" else g.div(step, 2)
        exponent = g.add(floor, g.cast(g.binary("ge", rest, least), ui32))
    is_nan = g.binary("gt", size, 0xFF << _MANTISSA)
    if saturate:
        exponent = g.binary("min", exponent, 0xFE)
    else:
        is_nan = g.binary("or", is_nan, g.binary("lt", size, _SMALLEST))
        exponent = g.binary("min", exponent, 0xFF)
    byte = g.cast(g.where(is_nan, g.scalar(0xFF, size), exponent), ui8)
    return _bits(g, byte, f8e8m0fnu)


def _bits(g: GraphBuilder, x: Tensor, to: Attribute) -> Tensor:
    return g.emit(lambda v: BitcastOp(v[0], to), x)


__all__ = ["ROUNDINGS", "powers_of_two", "saturated"]
