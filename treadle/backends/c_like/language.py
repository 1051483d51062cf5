"""The differences between C and CUDA C++ text; literals and operators, which they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from math import frexp, isinf, isnan
from typing import ClassVar, NoReturn, Protocol

import numpy as np
from xdsl.dialects import arith, math, vector
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    VectorType,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph.dtypes import is_stored, numpy_dtype, ui32, ui64
from treadle.dialects.scalar import FUNCTION_OF, ScalarFunction, is_unsigned
from treadle.errors import TreadleError

# Numbers as C literals that read back to the same value.

_DECIMAL_DIGITS = 9


def float_literal(value: float, width: int, infinity: str, nan: str) -> str:
    """A float of 16, 32 or 64 bits: the shortest decimal that reads back exactly, or 0x1p-20.

    `infinity` and `nan` are the language's names for the values that have no literal.
    """
    if isnan(value):
        return nan
    if isinf(value):
        return infinity if value > 0 else f"-{infinity}"
    suffix = "" if width == 64 else "f"
    if width == 64:
        text = repr(float(value))
    else:
        with np.errstate(over="ignore"):
            narrow = np.float32(value)
        if isinf(narrow):
            return infinity if value > 0 else f"-{infinity}"
        text = np.format_float_positional(narrow, trim="0", unique=True)
        if not 1e-4 <= abs(narrow) < 1e9 and narrow != 0:
            text = np.format_float_scientific(narrow, trim="0", unique=True)
    if len(text.strip("-0.")) > _DECIMAL_DIGITS + 1 and frexp(value)[0] in (0.5, -0.5):
        text = _power_of_two(value)
    return text + suffix


def int_literal(value: int, width: int, wide_suffix: str = "L") -> str:
    """A signed integer of `width` bits; the most negative ones have no literal of their own in C."""
    if value == -(1 << 63):
        return f"(-{(1 << 63) - 1}{wide_suffix} - 1)"
    if value == -(1 << 31):
        return f"(-{(1 << 31) - 1} - 1)" if width <= 32 else f"-{1 << 31}{wide_suffix}"
    return f"{value}{wide_suffix}" if not -(1 << 31) <= value < 1 << 31 else str(value)


def _power_of_two(value: float) -> str:
    mantissa, exponent = frexp(value)
    return f"{'-' if mantissa < 0 else ''}0x1p{exponent - 1}"


# Which operator or function of C each operation of arith and math is.


class Precedence(IntEnum):
    """C's precedence, loosest first."""

    TERNARY = 3
    OR = 4
    AND = 5
    OR_BITS = 6
    XOR_BITS = 7
    AND_BITS = 8
    EQUALITY = 9
    RELATION = 10
    SHIFT = 11
    ADD = 12
    MULTIPLY = 13
    UNARY = 15
    PRIMARY = 16

    @property
    def tighter(self) -> Precedence:
        """The precedence that the right operand of a left-associative operator needs."""
        return Precedence(min(level for level in Precedence if level > self))


OPERATORS: dict[type[Operation], tuple[str, Precedence]] = {
    arith.AddiOp: ("+", Precedence.ADD),
    arith.SubiOp: ("-", Precedence.ADD),
    arith.MuliOp: ("*", Precedence.MULTIPLY),
    arith.DivSIOp: ("/", Precedence.MULTIPLY),
    arith.DivUIOp: ("/", Precedence.MULTIPLY),
    arith.RemSIOp: ("%", Precedence.MULTIPLY),
    arith.RemUIOp: ("%", Precedence.MULTIPLY),
    arith.ShLIOp: ("<<", Precedence.SHIFT),
    arith.ShRSIOp: (">>", Precedence.SHIFT),
    arith.ShRUIOp: (">>", Precedence.SHIFT),
    arith.AndIOp: ("&", Precedence.AND_BITS),
    arith.OrIOp: ("|", Precedence.OR_BITS),
    arith.XOrIOp: ("^", Precedence.XOR_BITS),
    arith.AddfOp: ("+", Precedence.ADD),
    arith.SubfOp: ("-", Precedence.ADD),
    arith.MulfOp: ("*", Precedence.MULTIPLY),
    arith.DivfOp: ("/", Precedence.MULTIPLY),
}
FLOAT_OPERATORS = (arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.DivfOp)
WRAPPING = (arith.AddiOp, arith.SubiOp, arith.MuliOp)
"""Operations whose result is exact modulo two to the power of its bits if the operands are."""
DIVISIONS = (arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp)

COMMUTATIVE = (arith.AddiOp, arith.MuliOp, arith.AddfOp, arith.MulfOp)
COMPOUND = (*COMMUTATIVE, arith.SubiOp, arith.SubfOp)
"""Operations of which `a = a op b` is written `a op= b`."""

# Index values are not negative where these are used, so that signed division means the same. The other operands are of
# unsigned types.
UNSIGNED = (arith.DivUIOp, arith.RemUIOp)

# By the number of the predicate: the symbol, and whether it compares unsigned.
COMPARISONS = {
    **{number: (symbol, False) for number, symbol in enumerate(("==", "!=", "<", "<=", ">", ">="))},
    **{number: (symbol, True) for number, symbol in enumerate(("<", "<=", ">", ">="), start=6)},
}
# oeq, ogt, oge, olt, ole, une are what C's operators mean; ugt, uge, ult, ule are their negations.
FLOAT_COMPARISONS = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
NEGATED_COMPARISONS = {9: "<=", 10: "<", 11: ">=", 12: ">"}

CONVERSIONS = (
    *(arith.ExtFOp, arith.TruncFOp, arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.IndexCastOp),
    *(arith.SIToFPOp, arith.UIToFPOp, arith.FPToSIOp, arith.FPToUIOp),
)

FUNCTIONS: dict[type[Operation], ScalarFunction] = {**FUNCTION_OF, vector.FMAOp: FUNCTION_OF[math.FmaOp]}

INTEGER_FUNCTIONS: dict[type[Operation], str] = {
    arith.FloorDivSIOp: "floordiv",
    arith.CeilDivSIOp: "ceildiv",
    arith.MinSIOp: "min",
    arith.MaxSIOp: "max",
    arith.MinUIOp: "min",
    arith.MaxUIOp: "max",
}


_ACCEPTED = "scf, memref, vector, and what the tables of treadle/backends/c_like/language.py have"


class Values(Protocol):
    """The part of the expression printer that a language uses."""

    def at(self, value: SSAValue, level: Precedence = Precedence.TERNARY) -> str:
        """The expression for a value, in parentheses unless its precedence is at least `level`."""
        ...

    def element(self, buffer: SSAValue, indices: Sequence[SSAValue]) -> str:
        """One element of a buffer, as an lvalue."""
        ...


class Language(ABC):
    """A C-like language: its types, its functions, and how it writes buffers, barriers and pragmas."""

    name: str
    index: str
    """The type of `index` values."""
    infinity: str
    nan: str
    wide_suffix: str
    """Of a 64-bit integer literal."""
    index_suffix: str = ""
    """Of a literal of the type of `index` values that does not fit an `int`."""
    scalars: ClassVar[dict[Attribute, str]]
    """The types of values, except for `index`."""
    wraps: ClassVar[bool] = False
    """Whether sums, differences and products of `int` and of 64-bit integers wrap."""
    named_choices: ClassVar[bool] = False
    """Whether loads that a selection chooses between are done before it, both of them."""

    def type_name(self, type: Attribute) -> str:
        """The type of a variable; raises TreadleError for one that the language lacks."""
        if isinstance(type, IndexType):
            return self.index
        if isinstance(type, VectorType):
            return self.vector_type(type)
        if type in self.scalars:
            return self.scalars[type]
        raise TreadleError(f"a value of type {type}", f"{self.name} printer", map(str, self.scalars))

    def mask_type(self, type: Attribute) -> str:
        """The type of a variable for a mask that functions which access memory take."""
        return self.type_name(type)

    def memory_type(self, type: Attribute) -> str:
        """The type of an element of a buffer."""
        return self.type_name(type)

    def unsigned(self, type: Attribute) -> str:
        """The unsigned twin of an integer type."""
        name = self.type_name(type)
        return name if is_unsigned(type) else f"unsigned {name.removeprefix('signed ')}"

    def modular(self, type: Attribute) -> str:
        """The unsigned type that sums and products of an integer type are computed in: C widens narrower ones."""
        return self.unsigned(type) if type in (i64, ui64) else "unsigned"

    def literal(self, type: Attribute, value: float) -> str:
        """A number of a scalar type."""
        if is_stored(type):
            return str(np.array(value).astype(numpy_dtype(type)).view(np.uint8).item())
        if isinstance(type, BFloat16Type):
            return float_literal(value, 32, self.infinity, self.nan)  # rounded where it is narrowed
        if isinstance(type, Float16Type | Float32Type | Float64Type):
            return float_literal(value, type.bitwidth, self.infinity, self.nan)
        width = type.width.data if isinstance(type, IntegerType) else 64
        wide = isinstance(type, IntegerType) and width == 64
        if type in (ui32, ui64):
            return f"{int(value)}u{self.wide_suffix.lower() if type == ui64 else ''}"
        return int_literal(int(value), width, self.wide_suffix if wide else self.index_suffix)

    def widening(self, type: Attribute) -> tuple[str, str] | None:
        """How a float of up to 16 bits becomes a float and is made from one; None for other types."""
        if is_stored(type) and isinstance(type, AnyFloat):
            return f"treadle_{type}_to_float", f"treadle_float_to_{type}"
        return None

    def narrowing(self, source: Attribute, target: Attribute) -> str | None:
        """The function that makes a float of up to 16 bits of a number of another type; None for other targets."""
        pair = self.widening(target)
        if isinstance(source, Float64Type) and pair is not None:
            return pair[1].replace("_float_to_", "_double_to_")  # by way of a float it would be rounded twice
        return None if pair is None else pair[1]

    @abstractmethod
    def has_operators(self, type: Attribute) -> bool:
        """Whether + - * / and comparisons apply to values of the type."""

    @abstractmethod
    def vector_type(self, type: VectorType) -> str:
        """The type of a vector; raises TreadleError for one that the language lacks."""

    @abstractmethod
    def function(self, name: str, type: Attribute) -> str:
        """The function for `exp`, `max`, ... on values of `type`; raises TreadleError if the header has none."""

    def call(self, function: ScalarFunction, type: Attribute, operands: Sequence[str]) -> str:
        """The call of a function on floats of `type`, or on vectors of them: the header's, or the library's own."""
        if not function.header:
            return self.library_call(function.name, type, ", ".join(operands))
        return f"{self.function(function.name, type)}({', '.join(operands)})"

    @abstractmethod
    def library_call(self, name: str, type: Attribute, operands: str) -> str:
        """The call of a function of the C library, or CUDA's, on floats or doubles; of one operand if on vectors."""

    @abstractmethod
    def truncation(self, source: Attribute, target: Attribute) -> str:
        """The function that gives the whole part of a float as an integer: the nearest one if it does not fit."""

    def converted(self, text: str, source: VectorType, target: VectorType) -> str:
        """The lanes of a vector as numbers of another type; raises TreadleError where there are none."""
        raise TreadleError(f"{source} as {target}", f"{self.name} printer", "conversions of scalars")

    def clamped(self, text: str, bytes: VectorType, target: VectorType) -> str:
        """The lanes of a vector of floats as the nearest bytes, and those as numbers of a wider type."""
        return self.converted(text, bytes, target)

    @abstractmethod
    def splat(self, type: VectorType, scalar: str, zero: bool) -> str:
        """A vector whose lanes are all `scalar`; `zero` says that it is the number 0."""

    @abstractmethod
    def vector_load(self, type: VectorType, address: str) -> str:
        """The vector at an address (`&A[i]`), in the text of a unary expression."""

    def loaded(self, type: VectorType, load: str) -> str:
        """What `vector_load` gives, or a variable that holds it, as a value of the vector's own type; the text of a
        unary expression."""
        return load

    @abstractmethod
    def lane(self, vector: str, position: str, type: VectorType) -> str:
        """One lane of a vector that is a primary expression."""

    def part(self, vector: str, position: str, type: VectorType) -> str:
        """One of the equal parts of a vector, of the type given; raises TreadleError where there are none."""
        raise TreadleError(f"a part {type} of {vector} at {position}", f"{self.name} printer", "single elements")

    @abstractmethod
    def declare_array(self, name: str, type: MemRefType, extents: str, op: Operation) -> list[str]:
        """The lines that declare a buffer of the kernel; `extents` is its `[8][32]`."""

    @abstractmethod
    def loop_pragma(self, op: Operation, trips: int | None) -> str | None:
        """The line before a loop, for its discardable attributes."""

    def vector_lvalue(self, type: VectorType, address: str) -> str | None:
        """The vector at an address as something to assign to; None where a function stores it."""
        return None

    def expression(self, op: Operation, values: Values) -> str | None:
        """A primary expression for an operation that only this language has; None if it has no such one."""
        return None

    def statement(self, op: Operation, values: Values) -> str | None:
        """The statement for an operation that only this language has; None if it has no such one."""
        return None

    def reject(self, op: Operation, what: str | None = None, accepted: str | None = None) -> NoReturn:
        """Raises TreadleError for an operation that cannot be printed."""
        where = f"{self.name} printer, {kernel_name(op)}"
        raise TreadleError(what or f"cannot print {op.name}", where, accepted or _ACCEPTED)


def kernel_name(op: Operation) -> str:
    """The name of the kernel that an operation stands in, for messages."""
    at: Operation | None = op
    while at is not None:
        symbol = at.get_attr_or_prop("sym_name")
        if symbol is not None:
            return f"@{str(symbol).strip(chr(34))}"
        at = at.parent_op()
    return "a kernel"
