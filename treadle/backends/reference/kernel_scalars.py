"""Arith and math operations of a kernel as Python: an expression where there is one, else a function.

An `index` is a Python int, any other scalar a NumPy scalar of its type (so every float operation rounds to
its type), a vector an array of rank 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IndexType, VectorType
from xdsl.ir import Attribute, Operation

from treadle.dialects.graph.numpy_scalars import apply_scalar, constant_value, rounded, scalar_dtype, truncated

_MASK = hex(2**64 - 1)

_ANY: dict[type[Operation], str] = {
    arith.AddfOp: "{0} + {1}", arith.SubfOp: "{0} - {1}", arith.MulfOp: "{0} * {1}",
    arith.DivfOp: "{0} / {1}", arith.NegfOp: "-{0}",
    arith.AndIOp: "{0} & {1}", arith.OrIOp: "{0} | {1}", arith.XOrIOp: "{0} ^ {1}",
}  # fmt: skip
"""Correct for scalars and vectors of every type that the operation takes."""

_NO_BOOL: dict[type[Operation], str] = {
    arith.AddiOp: "{0} + {1}", arith.SubiOp: "{0} - {1}", arith.MuliOp: "{0} * {1}",
}  # fmt: skip
"""Correct for all types but i1."""

_BOOL: dict[type[Operation], str] = {
    arith.AddiOp: "{0} ^ {1}", arith.SubiOp: "{0} ^ {1}", arith.MuliOp: "{0} & {1}",
}  # fmt: skip
"""Arithmetic modulo two."""

_SCALAR: dict[type[Operation], str] = {
    arith.SelectOp: "{1} if {0} else {2}",
    arith.MaximumfOp: "{0} if {0} > {1} or {0} != {0} else {1}",
    arith.MinimumfOp: "{0} if {0} < {1} or {0} != {0} else {1}",
}

_INDEX: dict[type[Operation], str] = {
    arith.DivUIOp: f"({{0}} & {_MASK}) // {{1}}", arith.RemUIOp: f"({{0}} & {_MASK}) % {{1}}",
    arith.FloorDivSIOp: "{0} // {1}", arith.CeilDivSIOp: "-(-{0} // {1})",
    arith.MinSIOp: "min({0}, {1})", arith.MaxSIOp: "max({0}, {1})",
    arith.ShLIOp: "{0} << {1}",
}  # fmt: skip

_SIGNED = ("==", "!=", "<", "<=", ">", ">=")
"""The integer comparisons in the order of their codes; the unsigned ones follow."""
_ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
"""The float comparisons whose answer for NaN is Python's, by code."""


def _unsigned(a: int) -> int:
    return a & 2**64 - 1


_FOLDED: Mapping[type[Operation], Callable[[int, int], int]] = {
    arith.AddiOp: int.__add__, arith.SubiOp: int.__sub__, arith.MuliOp: int.__mul__,
    arith.FloorDivSIOp: int.__floordiv__,
    arith.DivUIOp: lambda a, b: _unsigned(a) // b, arith.RemUIOp: lambda a, b: _unsigned(a) % b,
}  # fmt: skip
"""Operations on indices, of constants."""
_COMPARED = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
"""Comparisons in the order of `_SIGNED`."""

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

_CONVERSIONS = (
    arith.ExtFOp, arith.TruncFOp, arith.FPToSIOp, arith.FPToUIOp, arith.SIToFPOp, arith.UIToFPOp, arith.BitcastOp,
    arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.IndexCastOp,
)  # fmt: skip


def element_of(type: Attribute) -> Attribute:
    """The type of one lane: of a vector its element type, of a scalar itself."""
    return type.element_type if isinstance(type, VectorType) else type


def expression(op: Operation) -> str | None:
    """A template of the operation's value over its operands' names, or None if it has none."""
    operand = element_of(op.operands[0].type)
    scalar = not isinstance(op.results[0].type, VectorType)
    kind = type(op)
    if isinstance(op, arith.CmpiOp):
        code = op.predicate.value.data
        return f"{{0}} {_SIGNED[code]} {{1}}" if code < len(_SIGNED) else None
    if isinstance(op, arith.CmpfOp):
        sign = _ORDERED.get(op.predicate.value.data)
        return None if sign is None else f"{{0}} {sign} {{1}}"
    if kind in _ANY:
        return _ANY[kind]
    if kind in _NO_BOOL:
        return (_BOOL if scalar_dtype(operand) == np.bool_ else _NO_BOOL)[kind]
    if kind in _INDEX and isinstance(operand, IndexType) and scalar:
        return _INDEX[kind]
    return _SCALAR.get(kind) if scalar else None


def literal(text: str) -> int | None:
    """The number that a constant index is in the text, `(3)`; None for a name."""
    return int(text[1:-1]) if text.startswith("(") else None


def folded(op: Operation, operands: Sequence[str]) -> str | None:
    """The text of an operation on indices that are constants; None where one is not, or there is no result."""
    found = [literal(text) for text in operands]
    if len(found) != 2:
        return None
    a, b = found
    if a is None or b is None:
        return None
    if isinstance(op, arith.CmpiOp):
        code = op.predicate.value.data
        return str(_COMPARED[code](a, b)) if code < len(_COMPARED) else None
    compute = _FOLDED.get(type(op))
    divides = isinstance(op, arith.DivUIOp | arith.RemUIOp | arith.FloorDivSIOp)
    return None if compute is None or (divides and b == 0) else f"({compute(a, b)})"


def function(op: Operation) -> Callable[..., Any]:
    """The operation's value as a function of its operands' values.

    Calling it raises TreadleError for an operation that kernels do not support.
    """
    if isinstance(op, _CONVERSIONS):
        return _conversion(op)
    to_int = isinstance(op.results[0].type, IndexType)

    def apply(*operands: Any) -> Any:
        value = apply_scalar(op, [np.asarray(operand) for operand in operands])[()]
        return int(value) if to_int else value

    return apply


def constant(op: arith.ConstantOp) -> Any:
    """The value of an `arith.constant`: an int, a NumPy scalar, or an array of its shape for a vector."""
    type = op.result.type
    if isinstance(type, VectorType) and isinstance(op.value, DenseIntOrFPElementsAttr):
        dtype = scalar_dtype(type.element_type)
        return np.array(op.value.get_values()).astype(dtype).reshape(type.get_shape())
    value = constant_value(op)[()]
    return int(value) if isinstance(type, IndexType) else value


def _conversion(op: Operation) -> Callable[[Any], Any]:
    """Widening, narrowing and casts."""
    source = scalar_dtype(element_of(op.operands[0].type))
    target = element_of(op.results[0].type)
    dtype = scalar_dtype(target)
    if isinstance(target, IndexType):
        return int
    if isinstance(op, arith.ExtSIOp | arith.SIToFPOp) and source == np.bool_:
        return lambda a: -np.asarray(a).astype(dtype)[()]
    if isinstance(op, arith.ExtUIOp | arith.UIToFPOp) and source.kind == "i":
        return lambda a: np.asarray(a).view(_UNSIGNED[source.itemsize]).astype(dtype)[()]
    if isinstance(op, arith.TruncIOp) and dtype == np.bool_:
        return lambda a: (a & 1) != 0
    if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
        return lambda a: truncated(np.asarray(a), dtype)[()]
    if isinstance(op, arith.TruncFOp):
        return lambda a: rounded(np.asarray(a), dtype)[()]
    if isinstance(op, arith.BitcastOp):
        return lambda a: np.asarray(a).view(dtype)[()]
    return lambda a: np.asarray(a).astype(dtype)[()]


__all__ = ["constant", "element_of", "expression", "folded", "function", "literal"]
