"""Shared by the printers of expressions: an expression with its precedence, and the interface by which they get
operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from xdsl.ir import Attribute, Operation, SSAValue

from treadle.backends.c_like.language import Language, Precedence


@dataclass(frozen=True)
class Text:
    """An expression and the precedence of its outermost operator."""

    text: str
    level: Precedence = Precedence.PRIMARY
    modular: Text | None = None
    """For a cast of a wider or unsigned number, that number, which suffices where the value is only needed modulo its
    bits."""

    def at(self, level: Precedence) -> str:
        """The text, in parentheses unless its precedence is at least this."""
        return self.text if self.level >= level else f"({self.text})"


Writers = tuple[tuple[type[Operation] | tuple[type[Operation], ...], Callable[..., Text]], ...]
"""The operations that a printer writes, each with its writer; the first match counts."""


class Values(Protocol):
    """Operands as expressions; `ExpressionPrinter` is one."""

    language: Language
    positive: set[SSAValue]
    """Values that are positive, though their expressions do not show it."""

    def text(self, value: SSAValue) -> Text:
        """The expression for a value."""
        ...

    def at(self, value: SSAValue, level: Precedence = Precedence.TERNARY) -> str:
        """The expression for a value, in parentheses unless its precedence is at least `level`."""
        ...

    def mask(self, value: SSAValue) -> str:
        """The expression for a mask, as functions that access memory under it take it."""
        ...

    def element(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """One element of a buffer, as an lvalue."""
        ...

    def vector_operand(self, value: SSAValue, level: Precedence) -> str:
        """A vector operand of an operator that also takes a scalar: a broadcast is written as the scalar."""
        ...

    def splat_scalar(self, value: SSAValue) -> Text | None:
        """The scalar that a vector operand may be written as."""
        ...


def number_text(language: Language, type: Attribute, value: float) -> Text:
    """A number of a scalar type."""
    text = language.literal(type, value)
    return Text(text, Precedence.UNARY if text.startswith("-") else Precedence.PRIMARY)


def relation(symbol: str, lhs: str, rhs: str) -> Text:
    """A comparison of two operands."""
    return Text(f"{lhs} {symbol} {rhs}", Precedence.EQUALITY if symbol in ("==", "!=") else Precedence.RELATION)


def wide(values: Values, value: SSAValue, level: Precedence) -> str:
    """A scalar operand of an arithmetic operator; 16-bit floats without operators become floats."""
    widening = values.language.widening(value.type)
    if widening is None or values.language.has_operators(value.type):
        return values.at(value, level)
    return f"{widening[0]}({values.at(value)})"


def narrowed(language: Language, text: Text, type: Attribute) -> Text:
    """The result of an operation on `wide` operands, as a value of `type`."""
    widening = language.widening(type)
    if widening is None or language.has_operators(type):
        return text
    return Text(f"{widening[1]}({text.text})")


def float_type(language: Language) -> Attribute:
    """The type that 16-bit floats are computed in."""
    return next(t for t, name in language.scalars.items() if name == "float")
