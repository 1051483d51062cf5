"""Arithmetic, comparison, logic, casts: one graph operator for each element-by-element node, or a few."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, isfinite, prod

import numpy as np
from xdsl.dialects.builtin import f32, f64, i32
from xdsl.ir import Attribute

from treadle.dialects.graph import BitcastOp
from treadle.dialects.graph.dtypes import (
    STORED_FLOATS,
    element_type,
    f8e8m0fnu,
    is_float,
    is_stored,
    largest,
    numpy_dtype,
    ui8,
    ui32,
)
from treadle.dialects.scalar import SCALAR_FUNCTIONS
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import floored_remainder
from treadle.frontends.common.extent import Extent, bound_of, bounds_of
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.tensor_data import dtype_of

# Conversions to floats of 8 and 4 bits: what ONNX asks for beyond rounding to the nearest one.

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


# Tensors that are known at compile time: constants and the arithmetic of shapes.


@converts("Constant")
def constant(node: Node, g: GraphBuilder) -> Tensor:
    """The value stands in one of several attributes."""
    tensor = node.tensor("value")
    if tensor is not None:
        return g.constant(tensor)
    if node.has("value_float"):
        return g.constant(np.array(node.float("value_float", 0.0), np.float32))
    if node.has("value_int"):
        return g.constant(np.array(node.int("value_int", 0), np.int64))
    floats, ints = node.floats("value_floats"), node.ints("value_ints")
    if floats is not None:
        return g.constant(np.array(floats, np.float32))
    if ints is not None:
        return g.constant(np.array(ints, np.int64))
    raise node.error("the constant has no supported value", "value, value_float, value_floats, value_int, value_ints")


@converts("ConstantOfShape", since=9)
def constant_of_shape(node: Node, g: GraphBuilder) -> Tensor:
    """One value everywhere; it is not expanded in memory before the constant is stored."""
    shape = tuple(node.known_ints(0, "the shape"))
    value = node.tensor("value")
    value = np.zeros(1, np.float32) if value is None else value
    if value.size != 1:
        raise node.error(f"attribute 'value' has {value.size} elements", "one element")
    node.reserve(shape, value.dtype)
    return g.constant(np.broadcast_to(value.reshape(()), bounds_of(shape)), shape)


@converts("Shape")
def shape_of(node: Node, g: GraphBuilder) -> Tensor:
    """The operand's extents from `start` to `end`."""
    rank = node.input().rank
    start, end = node.int("start", 0), node.int("end", rank)
    first, last = (min(max(v + rank if v < 0 else v, 0), rank) for v in (start, end))
    return g.numbers(node.input().shape[first:last])


@converts("Size")
def size_of(node: Node, g: GraphBuilder) -> Tensor:
    """The operand's number of elements."""
    return g.numbers(prod(node.input().shape))


@converts("Range", since=11)
def range_of(node: Node, g: GraphBuilder) -> Tensor:
    """`start + n * delta` below `limit`."""
    start, limit, delta = (node.known_scalar(n, w) for n, w in enumerate(("start", "limit", "delta")))
    if isinstance(delta, Extent):
        raise node.error(f"a range from {start} in steps of {delta}", "a delta that is a number")
    if isinstance(start, Extent):
        steps = _values(node, g, 0, _whole(node, limit) - start, delta)
        return g.add(steps, g.reshape(node.input(0), ()))
    return _values(node, g, start, limit, delta)


def _values(node: Node, g: GraphBuilder, start: float, limit: float, delta: float) -> Tensor:
    dtype = node.input(0).dtype
    count = _range_length(node, start, limit, delta)
    node.reserve((count,), dtype)
    with np.errstate(all="ignore"):
        # Integers may wrap in between; the result is exact.
        steps = np.arange(bound_of(count), dtype=dtype if dtype.kind == "f" else np.int64)
        values = np.asarray(np.asarray(delta, steps.dtype) * steps + np.asarray(start, steps.dtype))
        return g.constant(values.astype(dtype), (count,))


def _range_length(node: Node, start: float, limit: float, delta: float) -> int:
    if isinstance(limit, Extent):
        start, delta = _whole(node, start), _whole(node, delta)
    if isinstance(start, int) and isinstance(limit, int | Extent) and isinstance(delta, int) and delta:
        return max(-((start - limit) // delta), 0)
    if not all(map(isfinite, (start, limit, delta))) or delta == 0:
        raise node.error(f"start {start}, limit {limit}, delta {delta}", "finite numbers, a delta other than 0")
    quotient = (limit - start) / delta
    if not isfinite(quotient):
        raise node.error(f"start {start}, limit {limit}, delta {delta}", "fewer steps")
    return max(ceil(quotient), 0)


def _whole(node: Node, number: float) -> int:
    """An integer, where a range has as many steps as a call says."""
    if not isinstance(number, Extent) and number != floor(number):
        raise node.error(f"a range of {number} and of extents", "whole numbers")
    return number if isinstance(number, Extent) else int(number)


@converts("EyeLike", since=9)
def eye_like(node: Node, g: GraphBuilder) -> Tensor:
    """Ones on a diagonal."""
    x = node.input()
    if x.rank != 2:
        raise node.error(f"an input of rank {x.rank}", "rank 2")
    dtype = dtype_of(node.int("dtype", 0), node.where) if node.has("dtype") else numpy_dtype(x.element)
    rows, columns = x.shape
    node.reserve((rows, columns), dtype)
    most = bounds_of(x.shape)
    return g.constant(np.eye(most[0], most[1], node.int("k", 0), dtype=dtype), x.shape)


_UNARY = {
    **{function.onnx: function.kind for function in SCALAR_FUNCTIONS if function.onnx and function.kind},
    "IsNaN": "isnan", "Neg": "neg", "Not": "not", "Reciprocal": "reciprocal", "Relu": "relu", "Sigmoid": "sigmoid",
    "Sign": "sign",
}  # fmt: skip

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
    "Equal": "eq", "Greater": "gt", "Less": "lt",
}  # fmt: skip

_BINARY_SINCE = {"GreaterOrEqual": ("ge", 12), "LessOrEqual": ("le", 12)} | {
    f"Bitwise{name}": (name.lower(), 18) for name in ("And", "Or", "Xor")
}


@converts(*_UNARY)
def unary(node: Node, g: GraphBuilder) -> Tensor:
    """One function of each element; `Erf`, which ONNX has of integers, goes through float64 and is cut off."""
    node.ignore("consumed_inputs")
    x = node.input()
    if node.op_type == "Erf" and not x.is_float:
        return g.cast(g.unary("erf", g.cast(x, f64)), x.element)
    return g.unary(_UNARY[node.op_type], x)


def _register_binary() -> None:
    """NumPy's broadcasting came with opset 7; before, an attribute aligned the second operand."""
    kinds = {name: (kind, 7) for name, kind in _BINARY.items()} | _BINARY_SINCE
    for name, (kind, since) in kinds.items():
        converts(name, since=since)(_binary(kind))


def _binary(kind: str) -> Callable[[Node, GraphBuilder], Tensor]:
    return lambda node, g: g.binary(kind, node.input(0), node.input(1))


_register_binary()


def _integers(node: Node) -> Tensor:
    """The first operand of an operator on bits."""
    x = node.input(0)
    if x.dtype.kind not in "iu":
        raise node.error(f"bits of {x.element}", "integers")
    return x


@converts("BitwiseNot", since=18)
def bitwise_not(node: Node, g: GraphBuilder) -> Tensor:
    """`~x` is `x` with every bit flipped."""
    x = _integers(node)
    return g.binary("xor", x, g.constant(np.invert(np.zeros((), x.dtype))))


@converts("BitShift", since=11)
def bit_shift(node: Node, g: GraphBuilder) -> Tensor:
    """Products with, and quotients by, powers of two; to the right the sign of a signed number stays.

    Counts are unsigned: by a negative one, all bits leave.
    """
    x = _integers(node)
    dtype = np.dtype(f"uint{8 * x.dtype.itemsize}")
    unsigned = element_type(dtype)
    count = g.cast(node.input(1), unsigned)
    last = 8 * dtype.itemsize - 1
    beyond = g.binary("gt", count, last)
    powers = g.constant(np.left_shift(np.ones(last + 1, dtype), np.arange(last + 1, dtype=dtype)))
    power = g.gather(powers, g.cast(g.binary("min", count, last), i32), 0)
    if node.string("direction", "", ("LEFT", "RIGHT")) == "LEFT":
        return g.cast(g.where(beyond, g.scalar(0, count), g.mul(g.cast(x, unsigned), power)), x.element)
    if x.element == unsigned:
        return g.where(beyond, g.scalar(0, x), g.div(x, power))
    sign = g.where(g.binary("lt", x, 0), g.scalar(-1, x), g.scalar(0, x))
    shifted = g.div(g.cast(g.binary("xor", x, sign), unsigned), power)
    return g.binary("xor", g.cast(g.where(beyond, g.scalar(0, count), shifted), x.element), sign)


@converts("Pow", since=7)
def power(node: Node, g: GraphBuilder) -> Tensor:
    """The exponent takes the base's type; integers go through float64, exact below 2^53."""
    base, exponent = node.input(0), node.input(1)
    if base.is_float:
        return g.binary("pow", base, g.cast(exponent, base.element))
    return g.cast(g.binary("pow", g.cast(base, f64), g.cast(exponent, f64)), base.element)


@converts("Mod", since=10)
def modulo(node: Node, g: GraphBuilder) -> Tensor:
    """With `fmod` the sign is the dividend's, as in C; else the divisor's, as in Python."""
    a, b = node.input(0), node.input(1)
    as_in_c = node.flag("fmod")
    if a.is_float and not as_in_c and node.opset < 28:
        raise node.error("fmod = 0 of floats", "fmod = 1, integers, or opset 28")
    return g.binary("mod", a, b) if as_in_c else floored_remainder(g, a, b)


def _chain(kind: str) -> Callable[[Node, GraphBuilder], Tensor]:
    """A variadic operator as a chain of binary ones."""

    def convert(node: Node, g: GraphBuilder) -> Tensor:
        node.ignore("consumed_inputs")
        first, *rest = node.all_inputs()
        for operand in rest:
            first = g.binary(kind, first, operand)
        return first

    return convert


converts("Sum")(_chain("add"))
converts("Max")(_chain("max"))
converts("Min")(_chain("min"))


@converts("Mean")
def mean(node: Node, g: GraphBuilder) -> Tensor:
    """The sum of the operands divided by their number."""
    return g.div(_chain("add")(node, g), len(node))


@converts("Where", since=9)
def where(node: Node, g: GraphBuilder) -> Tensor:
    """`condition ? a : b`."""
    return g.where(node.input(0), node.input(1), node.input(2))


@converts("Cast", since=6)
def cast(node: Node, g: GraphBuilder) -> Tensor:
    """`saturate` and `round_mode` concern floats of 8 bits only."""
    return _converted(node, g, element_type(dtype_of(node.int("to", 0), node.where)))


def _converted(node: Node, g: GraphBuilder, to: Attribute) -> Tensor:
    saturate, rounding = node.flag("saturate", True), node.string("round_mode", "up", ROUNDINGS)
    x = node.input(0)
    if to == f8e8m0fnu and x.element != to:
        return powers_of_two(g, x, saturate, rounding)
    return g.cast(saturated(g, x, to) if saturate else x, to)


@converts("CastLike", since=15)
def cast_like(node: Node, g: GraphBuilder) -> Tensor:
    """A cast to the type of the second operand."""
    return _converted(node, g, node.input(1).element)


@converts("BitCast", since=26)
def bit_cast(node: Node, g: GraphBuilder) -> Tensor:
    """The bits of each element as another type of the same width."""
    to = element_type(dtype_of(node.int("to", 0), node.where))
    return g.emit(lambda v: BitcastOp(v[0], to), node.input())


@converts("Identity")
def identity(node: Node, g: GraphBuilder) -> Tensor:
    """The operand itself."""
    return node.input()


@converts("Dropout", since=7)
def dropout(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Nothing is dropped in inference, nor by a ratio of 0; the mask, if it is read, is all true."""
    node.ignore("ratio", "seed")
    if node.optional(2) is not None and bool(node.known(2, "training_mode").reshape(-1)[0]):
        ratio = 0.5 if node.optional(1) is None else node.known_scalar(1, "the ratio")
        if ratio:
            raise node.error(
                f"training_mode is true, with a ratio of {ratio}", "training_mode = false, or a ratio of 0"
            )
    return [node.input(), g.filled(True, np.dtype(np.bool_), node.input().shape)]


@converts("IsInf", since=10)
def is_inf(node: Node, g: GraphBuilder) -> Tensor:
    """Infinities of one sign or of both."""
    negative, positive = node.flag("detect_negative", True), node.flag("detect_positive", True)
    x = node.input()
    if negative and positive:
        return g.unary("isinf", x)
    if not negative and not positive:
        return g.filled(False, np.dtype(np.bool_), x.shape)
    return g.binary("eq", x, np.inf if positive else -np.inf)


@converts("Clip", since=6)
def clip_attributes(node: Node, g: GraphBuilder) -> Tensor:
    """Bounds as attributes."""
    low, high = node.optional_float("min"), node.optional_float("max")
    return clip(g, node.input(), *(None if v is None else g.scalar(v, node.input()) for v in (low, high)))


@converts("Clip", since=11)
def clip_inputs(node: Node, g: GraphBuilder) -> Tensor:
    """Bounds as inputs, each of which may be omitted."""
    return clip(g, node.input(), node.optional(1), node.optional(2))


def clip(g: GraphBuilder, x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """`min(max(x, low), high)`, without a missing bound."""
    x = x if low is None else g.binary("max", x, low)
    return x if high is None else g.binary("min", x, high)
