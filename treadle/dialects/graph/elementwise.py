"""Elementwise operators: unary, binary, where, cast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, pi, sqrt

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, StringAttr, TensorType, bf16, f16, f32, i1, i8, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import (
    DefinitionBuilder,
    Misfit,
    MovesElements,
    Operator,
    Scalar,
    require,
    widened,
    word,
)
from treadle.dialects.graph.dtypes import bit_width, byte_width, f8e8m0fnu, is_float, is_stored, is_supported, ui8
from treadle.dialects.scalar import BINARY_KINDS, UNARY_KINDS, is_unsigned

Body = Callable[[DefinitionBuilder, Scalar], Scalar]


def _negate(b: DefinitionBuilder, x: Scalar) -> Scalar:
    if is_float(x.type):
        return b.insert(arith.NegfOp(x))
    return b.binary("sub", b.constant(0, x.type), x)


def _sigmoid(b: DefinitionBuilder, x: Scalar) -> Scalar:
    one = b.constant(1.0, x.type)
    return b.binary("div", one, b.binary("add", one, b.math("exp", _negate(b, x))))


def _sign(b: DefinitionBuilder, x: Scalar) -> Scalar:
    zero, one = (b.constant(v, x.type) for v in (0, 1))
    below = x if is_unsigned(x.type) else b.select(b.binary("lt", x, zero), b.constant(-1, x.type), x)
    return b.select(b.binary("gt", x, zero), one, below)


def _absolute(b: DefinitionBuilder, x: Scalar) -> Scalar:
    if is_float(x.type):
        return b.math("abs", x)
    return x if is_unsigned(x.type) else b.binary("max", x, _negate(b, x))


def _not(b: DefinitionBuilder, x: Scalar) -> Scalar:
    return b.binary("xor", x, b.constant(1, i1))


def _is_nan(b: DefinitionBuilder, x: Scalar) -> Scalar:
    return b.binary("ne", x, x)


def _is_inf(b: DefinitionBuilder, x: Scalar) -> Scalar:
    return b.binary("eq", b.math("abs", x), b.constant(inf, x.type))


def _gelu(b: DefinitionBuilder, x: Scalar) -> Scalar:
    scaled = b.math("erf", b.mul(x, b.constant(sqrt(0.5), x.type)))
    half = b.mul(x, b.constant(0.5, x.type))
    return b.mul(half, b.binary("add", b.constant(1.0, x.type), scaled))


def _gelu_tanh(b: DefinitionBuilder, x: Scalar) -> Scalar:
    cube = b.mul(b.mul(b.mul(x, x), x), b.constant(0.044715, x.type))
    inner = b.mul(b.constant(sqrt(2 / pi), x.type), b.binary("add", x, cube))
    one = b.constant(1.0, x.type)
    return b.mul(b.mul(x, b.constant(0.5, x.type)), b.binary("add", one, b.math("tanh", inner)))


def _in_float32(body: Body) -> Body:
    """16-bit floats by way of float32: of a step in between there may be no such float, as of exp(12) in float16."""
    return lambda b, x: convert(b, body(b, widened(b, x)), x.type)


def _math(kind: str) -> Body:
    return lambda b, x: b.math(kind, x)


UNARY: dict[str, Body] = {
    **{kind: _math(kind) for kind in UNARY_KINDS},
    "neg": _negate,
    "abs": _absolute,
    "sign": _sign,
    "not": _not,
    "sigmoid": _in_float32(_sigmoid),
    "relu": lambda b, x: b.binary("max", x, b.constant(0, x.type)),
    "reciprocal": lambda b, x: b.binary("div", b.constant(1.0, x.type), x),
    "isnan": _is_nan,
    "isinf": _is_inf,
    "gelu": _in_float32(_gelu),
    "gelu_tanh": _in_float32(_gelu_tanh),
}
"""Unary operators and what they compute: functions on floats (treadle/dialects/scalar.py), and others."""

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = ("add", "sub", "mul", "div", *BINARY_KINDS, "and", "or", "xor", *COMPARISONS)
_FOR_BOOLS = ("and", "or", "xor", "eq", "ne")
_FOR_FLOATS = ("add", "sub", "mul", "div", *BINARY_KINDS, *COMPARISONS)
_FOR_INTS = ("add", "sub", "mul", "div", "mod", "max", "min", "and", "or", "xor", *COMPARISONS)
_FLOATS_TO_BOOL = ("isnan", "isinf")
_FOR_INTS_UNARY = ("neg", "abs", "sign", "relu")


def broadcast_shapes(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """NumPy's broadcast of shapes, a symbolic extent against 1 or itself; VerifyException if they do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for n, extent in enumerate(shape, start=rank - len(shape)):
            if result[n] in (1, extent):
                result[n] = extent
            elif extent != 1:
                message = f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast"
                raise Misfit(message, "extents that are equal or 1, counted from the last dimension")
    return tuple(result)


@irdl_op_definition
class UnaryOp(Operator):
    """One function of each element; `kind` is a key of `UNARY`.

    ```mlir
    %y = graph.unary "exp" %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
    ```
    Rejected: an unknown kind, a kind that is not defined on the element type (`exp` of integers, `not` of floats).
    """

    name = "graph.unary"
    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$kind $x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, kind: str, x: SSAValue):
        super().__init__([x], kind=kind)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        kind, type = word(properties, "kind"), types[0]
        require(kind in UNARY, f"unknown unary operator {kind!r}: expected one of {', '.join(sorted(UNARY))}")
        element = type.get_element_type()
        fits = element == i1 if kind == "not" else is_float(element) or (kind in _FOR_INTS_UNARY and element != i1)
        integers = "floats and integers" if kind in _FOR_INTS_UNARY else "floats"
        require(fits, f"{kind} is not defined on {element}", "bools" if kind == "not" else integers)
        return TensorType(i1, type.get_shape()) if kind in _FLOATS_TO_BOOL else type

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        return UNARY[self.kind.data](b, b.at(self.x, index))


@irdl_op_definition
class BinaryOp(Operator):
    """One function of two tensors' elements, shapes broadcast as in NumPy; `kind` is one of `BINARY`.

    ```mlir
    %y = graph.binary "add" %a, %b : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    ```
    Comparisons give `i1`; integers wrap, their division truncates, by 0 it is 0 (docs/numerics.md), and `mod` has the
    sign of the dividend, as C's `%` and `fmod`. Rejected: shapes that do not broadcast, element types that differ, a
    kind that is not defined on the element type.
    """

    name = "graph.binary"
    kind = prop_def(StringAttr)
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$kind $lhs `,` $rhs attr-dict `:` `(` type($lhs) `,` type($rhs) `)` `->` type($result)"

    def __init__(self, kind: str, lhs: SSAValue, rhs: SSAValue):
        super().__init__([lhs, rhs], kind=kind)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        kind = word(properties, "kind")
        a, b = (t.get_element_type() for t in types)
        require(a == b, f"{kind} of {a} and {b}: element types differ", f"two operands of {a}, or of {b}")
        allowed = _FOR_FLOATS if is_float(a) else _FOR_BOOLS if a == i1 else _FOR_INTS
        require(kind in BINARY, f"unknown binary operator {kind!r}: expected one of {', '.join(BINARY)}")
        kinds = {"floats": _FOR_FLOATS, "bools": _FOR_BOOLS, "integers": _FOR_INTS}
        takes = ", ".join(name for name, each in kinds.items() if kind in each)
        require(kind in allowed, f"{kind} is not defined on {a}", takes)
        return TensorType(i1 if kind in COMPARISONS else a, broadcast_shapes([t.get_shape() for t in types]))

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        return b.binary(self.kind.data, b.broadcast_at(self.lhs, index), b.broadcast_at(self.rhs, index))


@irdl_op_definition
class WhereOp(Operator):
    """`condition ? a : b` of each element, shapes broadcast.

    ```mlir
    %y = graph.where %c, %a, %b : (tensor<4x1xi1>, tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    ```
    Rejected: a condition that is not `i1`, branches of different element types.
    """

    name = "graph.where"
    condition = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = (
        "$condition `,` $a `,` $b attr-dict `:` `(` type($condition) `,` type($a) `,` type($b) `)` `->` type($result)"
    )

    def __init__(self, condition: SSAValue, a: SSAValue, b: SSAValue):
        super().__init__([condition, a, b])

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        condition, a, b = (t.get_element_type() for t in types)
        require(condition == i1, f"the condition is a tensor of i1, not of {condition}")
        require(a == b, f"branches of {a} and {b}: element types differ", f"two of {a}, or of {b}")
        return TensorType(a, broadcast_shapes([t.get_shape() for t in types]))

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        return b.select(*(b.broadcast_at(v, index) for v in (self.condition, self.a, self.b)))


class ConversionOp(Operator):
    """Elements in another type."""

    x = operand_def(TensorType)
    to = prop_def(Attribute)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x `to` $to attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, to: Attribute):
        super().__init__([x], to=to)


@irdl_op_definition
class CastOp(ConversionOp):
    """Converts elements: floats to integers truncate towards zero, numbers to `i1` test for non-zero.

    A float beyond the integers of the type becomes the nearest of them, and NaN becomes 0; an integer keeps its low
    bits. An integer of 4 or 2 bits is made of the low bits of an i32. Floats round to the nearest one, ties to even;
    beyond the largest number is infinity, in a type that has none NaN, and in f4E2M1FN, which has no NaN either, the
    largest number itself and 0 for NaN. Rejected: f8E8M0FNU as the result, whose elements `graph.bitcast` gives.

    ```mlir
    %y = graph.cast %x to f32 : (tensor<4xi64>) -> tensor<4xf32>
    ```
    """

    name = "graph.cast"

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        to = properties["to"]
        require(is_supported(to), f"no tensor has elements of {to}")
        require(to != f8e8m0fnu or types[0].get_element_type() == to, f"no number is rounded to {to}")
        return TensorType(to, types[0].get_shape())

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        return convert(b, b.at(self.x, index), self.to)


_UNREAD = (bf16, f16)


@irdl_op_definition
class BitcastOp(ConversionOp):
    """Reads the bits of elements as another type of the same width.

    ```mlir
    %y = graph.bitcast %x to i32 : (tensor<4xf32>) -> tensor<4xi32>
    ```
    The bits of an `i1` are those of 0 and 1; a byte that becomes an `i1` is true unless it is 0. Rejected: a type of
    another width, floats of 16 bits.
    """

    name = "graph.bitcast"

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        to, element = properties["to"], types[0].get_element_type()
        require(is_supported(to), f"no tensor has elements of {to}")
        require(bit_width(to) == bit_width(element), f"the bits of {element} as {to}: expected a type as wide")
        readable = to == element or not {to, element} & set(_UNREAD)
        require(readable, f"the bits of {element} as {to}: no floats of 16 bits are read by their bits")
        return TensorType(to, types[0].get_shape())

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        x = b.at(self.x, index)
        plain = x.type == self.to or i1 in (x.type, self.to)
        return convert(b, x, self.to) if plain else b.insert(arith.BitcastOp(x, self.to))


def convert(b: DefinitionBuilder, x: Scalar, to: Attribute) -> Scalar:
    """A scalar in another element type, as `graph.cast` does it."""
    if x.type == to:
        return x
    if is_stored(x.type):
        return convert(b, _taken_out(b, x), to)
    if is_stored(to):
        return _stored(b, x, to)
    if to == i1:
        return b.binary("ne", x, b.constant(0, x.type))
    if is_float(x.type) and is_float(to):
        wider = byte_width(to) > byte_width(x.type)
        return b.insert(arith.ExtFOp(x, to) if wider else arith.TruncFOp(x, to))  # pyright: ignore
    if is_float(x.type):
        return b.insert(arith.FPToUIOp(x, to) if is_unsigned(to) else arith.FPToSIOp(x, to))  # pyright: ignore
    unsigned = x.type == i1 or is_unsigned(x.type)
    if is_float(to):
        return b.insert(arith.UIToFPOp(x, to) if unsigned else arith.SIToFPOp(x, to))  # pyright: ignore
    assert isinstance(to, IntegerType) and isinstance(x.type, IntegerType)
    if to.width.data < x.type.width.data:
        return b.insert(arith.TruncIOp(x, to))
    if to.width.data == x.type.width.data:
        return b.insert(arith.BitcastOp(x, to))
    return b.insert(arith.ExtUIOp(x, to) if unsigned else arith.ExtSIOp(x, to))


def _taken_out(b: DefinitionBuilder, x: Scalar) -> Scalar:
    """The number that an element of a stored type is, in a type that is computed with."""
    if is_float(x.type):
        return b.insert(arith.ExtFOp(x, f32))
    if is_unsigned(x.type):
        return b.insert(arith.ExtUIOp(x, ui8))
    return b.insert(arith.ExtSIOp(x, i8))


def _stored(b: DefinitionBuilder, x: Scalar, to: Attribute) -> Scalar:
    """A number as an element of a stored type."""
    if is_float(to):
        wide = widened(b, x) if is_float(x.type) else convert(b, x, f32)
        return b.insert(arith.TruncFOp(wide, to))  # pyright: ignore
    assert isinstance(to, IntegerType)
    whole = convert(b, x, i32) if is_float(x.type) or x.type == i1 else x
    return b.insert(arith.TruncIOp(whole, to))
