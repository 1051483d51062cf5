"""Constants, operators and function calls on scalars and vectors."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType, VectorType
from xdsl.ir import Operation, SSAValue

from treadle.backends.c_like.constants import constant_integer, folded_integer, splat_number
from treadle.backends.c_like.operators import FUNCTIONS, INTEGER_FUNCTIONS, OPERATORS, UNSIGNED, Level
from treadle.backends.c_like.values import Text, Values, Writers, float_type, narrowed, number_text, wide

TRUE_BIT = 1


class Arithmetic:
    """Writes what computes numbers of one type from numbers of that type."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (arith.ConstantOp, self._constant),
            (tuple(OPERATORS), self._operator),
            ((arith.AndIOp, arith.OrIOp, arith.XOrIOp), self._bits),
            (arith.NegfOp, self._negate),
            (tuple(FUNCTIONS), self._call),
            (tuple(INTEGER_FUNCTIONS), self._call_integer),
        )

    def _constant(self, op: arith.ConstantOp) -> Text:
        if isinstance(op.value, IntegerAttr | FloatAttr):
            number = op.value.value.data
            if isinstance(op.result.type, IntegerType) and op.result.type.width.data == 1:
                number = abs(number)
            if self._language.widening(op.result.type) and not self._language.has_operators(op.result.type):
                return narrowed(self._language, number_text(self._language, op.result.type, number), op.result.type)
            return number_text(self._language, op.result.type, number)
        type = op.result.type
        number = splat_number(op)
        if number is None or not isinstance(type, VectorType):
            self._language.reject(op, f"a constant of type {type}", "scalars and splat vectors")
        positive_zero = number == 0 and not str(number).startswith("-")
        scalar = narrowed(
            self._language, number_text(self._language, type.element_type, number), type.element_type
        ).text
        return Text(self._language.splat(type, scalar, positive_zero))

    def _operator(self, op: Operation) -> Text:
        symbol, level = OPERATORS[type(op)]
        lhs, rhs = op.operands
        if isinstance(op, UNSIGNED) and not isinstance(lhs.type, IndexType):
            unsigned = self._language.unsigned(lhs.type)
            left, right = (f"({unsigned}){self._values.at(v, Level.UNARY)}" for v in (lhs, rhs))
            return Text(f"({self._language.type_name(lhs.type)})({left} {symbol} {right})", Level.UNARY)
        known = folded_integer(op)
        if known is not None:
            return number_text(self._language, lhs.type, known)  # C would compute it in 32 bits
        if isinstance(op, arith.AddiOp):
            return self._sum(lhs, rhs)
        if isinstance(lhs.type, VectorType):
            return self._vector_operator(symbol, level, lhs, rhs)
        if level is Level.SHIFT:
            return Text(f"{self._values.at(lhs, Level.UNARY)} {symbol} {self._values.at(rhs, Level.UNARY)}", level)
        text = f"{wide(self._values, lhs, level)} {symbol} {wide(self._values, rhs, level.tighter)}"
        return narrowed(self._language, Text(text, level), op.results[0].type)

    def _sum(self, lhs: SSAValue, rhs: SSAValue) -> Text:
        known = constant_integer(rhs)
        if known is not None and -(1 << 31) < known < 0:
            return Text(f"{self._values.at(lhs, Level.ADD)} - {-known}", Level.ADD)
        return Text(f"{self._values.at(lhs, Level.ADD)} + {self._values.at(rhs, Level.ADD)}", Level.ADD)

    def _vector_operator(self, symbol: str, level: Level, lhs: SSAValue, rhs: SSAValue) -> Text:
        # At most one side may be written as a scalar.
        if self._values.splat_scalar(lhs) is not None and self._values.splat_scalar(rhs) is None:
            return Text(
                f"{self._values.vector_operand(lhs, level)} {symbol} {self._values.at(rhs, level.tighter)}", level
            )
        return Text(f"{self._values.at(lhs, level)} {symbol} {self._values.vector_operand(rhs, level.tighter)}", level)

    def _bits(self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp) -> Text:
        lhs, rhs = op.lhs, op.rhs
        if op.result.type != IntegerType(1):
            symbol, level = {"andi": ("&", Level.AND_BITS), "ori": ("|", Level.OR_BITS)}.get(
                op.name.split(".")[1], ("^", Level.XOR_BITS)
            )
            return Text(f"{self._values.at(lhs, Level.UNARY)} {symbol} {self._values.at(rhs, Level.UNARY)}", level)
        if isinstance(op, arith.XOrIOp):
            if constant_integer(rhs) is not None and abs(constant_integer(rhs) or 0) == TRUE_BIT:
                return Text(f"!{self._values.at(lhs, Level.UNARY)}", Level.UNARY)
            return Text(
                f"{self._values.at(lhs, Level.RELATION)} != {self._values.at(rhs, Level.RELATION)}", Level.EQUALITY
            )
        symbol, level = ("&&", Level.AND) if isinstance(op, arith.AndIOp) else ("||", Level.OR)
        sides = (self._values.text(lhs), self._values.text(rhs))
        # `a && b || c` is right but warned about, and hard to read.
        parts = [t.text if t.level is level else t.at(Level.EQUALITY) for t in sides]
        return Text(f" {symbol} ".join(parts), level)

    def _negate(self, op: arith.NegfOp) -> Text:
        operand = wide(self._values, op.operand, Level.UNARY)
        operand = f"({operand})" if operand.startswith("-") else operand
        return narrowed(self._language, Text(f"-{operand}", Level.UNARY), op.result.type)

    def _call(self, op: Operation) -> Text:
        type_ = op.results[0].type
        widening = self._language.widening(type_)
        if widening is None:
            function = self._language.function(FUNCTIONS[type(op)], type_)
            return Text(f"{function}({', '.join(self._values.at(operand) for operand in op.operands)})")
        function = self._language.function(FUNCTIONS[type(op)], float_type(self._language))
        operands = [f"{widening[0]}({self._values.at(operand)})" for operand in op.operands]
        return Text(f"{widening[1]}({function}({', '.join(operands)}))")

    def _call_integer(self, op: Operation) -> Text:
        function = self._language.function(INTEGER_FUNCTIONS[type(op)], op.results[0].type)
        return Text(f"{function}({', '.join(self._values.at(operand) for operand in op.operands)})")
