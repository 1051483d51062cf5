"""Arithmetic, comparison, logic, casts: one graph operator for each element-by-element node, or a few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.dialects.builtin import f64, i32
from xdsl.ir import Attribute

from treadle.dialects.graph import BitcastOp
from treadle.dialects.graph.dtypes import element_type, f8e8m0fnu
from treadle.dialects.scalar import SCALAR_FUNCTIONS
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.remainder import floored_remainder
from treadle.frontends.onnx.converters.small_floats import ROUNDINGS, powers_of_two, saturated
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts
from treadle.frontends.onnx.tensor_data import dtype_of

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


__all__ = ["clip"]
