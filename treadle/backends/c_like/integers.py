"""Operations on integers, as C expressions with exactly the value that the operation defines.

C computes 8 and 16-bit integers as `int`; operations of `arith` wrap. Sums, differences and products of elements are
cast back once: `(short)(a * b + c)`. Where a language leaves the overflow of `int` and `long` undefined, they are
computed as unsigned numbers: `(int)((unsigned)a * b + c)`. An `index` does not overflow, and is written plainly.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType, VectorType, i32, i64
from xdsl.ir import Operation, SSAValue

from treadle.backends.c_like.constants import constant_integer, folded_integer
from treadle.backends.c_like.operators import (
    DIVISIONS,
    INTEGER_FUNCTIONS,
    OPERATORS,
    UNSIGNED,
    WRAPPING,
    Level,
)
from treadle.backends.c_like.values import Text, Values, Writers, number_text
from treadle.dialects.graph.dtypes import ui32, ui64
from treadle.dialects.scalar import is_unsigned

_TRUE_BIT = 1
_SHIFTS = (arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp)


class Integers:
    """Writes operations on integers of one type."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (WRAPPING, self._sum_or_product),
            (DIVISIONS, self._divide),
            (_SHIFTS, self._shift),
            ((arith.AndIOp, arith.OrIOp, arith.XOrIOp), self._bits),
            (tuple(INTEGER_FUNCTIONS), self._call),
        )

    def _sum_or_product(self, op: Operation) -> Text:
        type = op.results[0].type
        if isinstance(type, VectorType) and self._language.wraps:
            return self._of_lanes(op)
        if isinstance(type, VectorType) or type == IntegerType(1):
            self._language.reject(op, f"{op.name} of {type}", "scalars of index and of 8 to 64-bit integers")
        if not isinstance(type, IndexType):
            modular = self._modular(op)
            if type in (ui32, ui64) or (self._language.wraps and type in (i32, i64)):
                return modular
            text = f"({self._language.type_name(type)}){modular.at(Level.UNARY)}"
            return Text(text, Level.UNARY, modular)
        known = folded_integer(op)
        if known is not None:
            return number_text(self._language, type, known)  # C would compute it in 32 bits
        symbol, level = OPERATORS[op.__class__]
        symbol, rhs = self._right(op, symbol, level)
        return Text(f"{self._values.at(op.operands[0], level)} {symbol} {rhs.at(level.tighter)}", level)

    def _of_lanes(self, op: Operation) -> Text:
        """The same of vectors. A broadcast is written as the scalar on the right, where a number may stand."""
        symbol, level = OPERATORS[op.__class__]
        lhs, rhs = op.operands
        return Text(f"{self._values.at(lhs, level)} {symbol} {self._values.vector_operand(rhs, level.tighter)}", level)

    def _modular(self, op: Operation) -> Text:
        """The result modulo two to the power of its bits, as a number of at least as many."""
        symbol, level = OPERATORS[op.__class__]
        symbol, rhs = self._right(op, symbol, level)
        lhs = self._values.text(op.operands[0])
        first = lhs.modular or lhs
        if lhs.modular is None and not self._language.wraps and op.operands[0].type not in (ui32, ui64):
            # One unsigned operand makes C convert the other.
            first = Text(self._unsigned(op.operands[0], lhs), Level.UNARY)
        return Text(f"{first.at(level)} {symbol} {(rhs.modular or rhs).at(level.tighter)}", level)

    def _unsigned(self, value: SSAValue, text: Text) -> str:
        return f"({self._language.modular(value.type)}){text.at(Level.UNARY)}"

    def _right(self, op: Operation, symbol: str, level: Level) -> tuple[str, Text]:
        """The operator and its right operand: `- 2` for the addition of -2."""
        known = constant_integer(op.operands[1])
        if isinstance(op, arith.AddiOp) and known is not None and -(1 << 31) < known < 0:
            return "-", Text(str(-known))
        return symbol, self._values.text(op.operands[1])

    def _divide(self, op: Operation) -> Text:
        type = op.results[0].type
        lhs, rhs = op.operands
        symbol, level = OPERATORS[op.__class__]
        known = constant_integer(rhs)
        if isinstance(op, UNSIGNED) and not (isinstance(type, IndexType) or is_unsigned(type)):
            self._language.reject(op, f"{op.name} of {type}", "index and unsigned integers")
        # C's operators give these values unless they trap: for a divisor of 0, and the lowest number divided by -1.
        if known not in (None, 0, -1) or rhs in self._values.positive:
            return Text(f"{self._values.at(lhs, level)} {symbol} {self._values.at(rhs, level.tighter)}", level)
        function = self._language.function("div" if symbol == "/" else "rem", type)
        return Text(f"{function}({self._values.at(lhs)}, {self._values.at(rhs)})")

    def _shift(self, op: Operation) -> Text:
        type = op.results[0].type
        symbol, level = OPERATORS[op.__class__]
        amount = constant_integer(op.operands[1])
        bits = type.width.data if isinstance(type, IntegerType) else 64
        if amount is None or not 0 <= amount < bits:
            self._language.reject(
                op, f"{op.name} by {'a variable' if amount is None else amount}", f"a constant from 0 to {bits - 1}"
            )
        lhs = self._values.text(op.operands[0])
        if isinstance(type, IndexType) or isinstance(op, arith.ShRSIOp):
            return Text(f"{lhs.at(Level.UNARY)} {symbol} {amount}", level)
        unsigned = (
            (lhs.modular or Text(self._unsigned(op.operands[0], lhs), Level.UNARY)).at(Level.UNARY)
            if isinstance(op, arith.ShLIOp)
            else f"({self._language.unsigned(type)}){lhs.at(Level.UNARY)}"
        )
        return Text(f"({self._language.type_name(type)})({unsigned} {symbol} {amount})", Level.UNARY)

    def _bits(self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp) -> Text:
        lhs, rhs = op.lhs, op.rhs
        if op.result.type != IntegerType(1):
            symbol, level = {"andi": ("&", Level.AND_BITS), "ori": ("|", Level.OR_BITS)}.get(
                op.name.split(".")[1], ("^", Level.XOR_BITS)
            )
            return Text(f"{self._values.at(lhs, Level.UNARY)} {symbol} {self._values.at(rhs, Level.UNARY)}", level)
        if isinstance(op, arith.XOrIOp):
            if constant_integer(rhs) is not None and abs(constant_integer(rhs) or 0) == _TRUE_BIT:
                return Text(f"!{self._values.at(lhs, Level.UNARY)}", Level.UNARY)
            return Text(
                f"{self._values.at(lhs, Level.RELATION)} != {self._values.at(rhs, Level.RELATION)}", Level.EQUALITY
            )
        symbol, level = ("&&", Level.AND) if isinstance(op, arith.AndIOp) else ("||", Level.OR)
        sides = (self._values.text(lhs), self._values.text(rhs))
        # compilers warn about `a && b || c`, which is hard to read.
        parts = [t.text if t.level is level else t.at(Level.EQUALITY) for t in sides]
        return Text(f" {symbol} ".join(parts), level)

    def _call(self, op: Operation) -> Text:
        function = self._language.function(INTEGER_FUNCTIONS[type(op)], op.results[0].type)
        return Text(f"{function}({', '.join(self._values.at(operand) for operand in op.operands)})")
