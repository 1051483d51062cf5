"""Constants, and operators and function calls on floats and vectors of floats."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, VectorType
from xdsl.ir import Operation, SSAValue

from treadle.backends.c_like.constants import splat_number
from treadle.backends.c_like.operators import FLOAT_OPERATORS, FUNCTIONS, OPERATORS, Level
from treadle.backends.c_like.values import Text, Values, Writers, float_type, narrowed, number_text, wide
from treadle.dialects.graph.dtypes import is_stored


class Arithmetic:
    """Writes constants, and operations on floats of one type."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (arith.ConstantOp, self._constant),
            (FLOAT_OPERATORS, self._operator),
            (arith.NegfOp, self._negate),
            (tuple(FUNCTIONS), self._call),
        )

    def _constant(self, op: arith.ConstantOp) -> Text:
        if isinstance(op.value, IntegerAttr | FloatAttr):
            number = op.value.value.data
            if isinstance(op.result.type, IntegerType) and op.result.type.width.data == 1:
                number = abs(number)
            text = number_text(self._language, op.result.type, number)
            return text if is_stored(op.result.type) else narrowed(self._language, text, op.result.type)
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
        if isinstance(lhs.type, VectorType):
            return self._vector_operator(symbol, level, lhs, rhs)
        text = f"{wide(self._values, lhs, level)} {symbol} {wide(self._values, rhs, level.tighter)}"
        return narrowed(self._language, Text(text, level), op.results[0].type)

    def _vector_operator(self, symbol: str, level: Level, lhs: SSAValue, rhs: SSAValue) -> Text:
        # At most one side may be written as a scalar.
        if self._values.splat_scalar(lhs) is not None and self._values.splat_scalar(rhs) is None:
            return Text(
                f"{self._values.vector_operand(lhs, level)} {symbol} {self._values.at(rhs, level.tighter)}", level
            )
        return Text(f"{self._values.at(lhs, level)} {symbol} {self._values.vector_operand(rhs, level.tighter)}", level)

    def _negate(self, op: arith.NegfOp) -> Text:
        operand = wide(self._values, op.operand, Level.UNARY)
        operand = f"({operand})" if operand.startswith("-") else operand
        return narrowed(self._language, Text(f"-{operand}", Level.UNARY), op.result.type)

    def _call(self, op: Operation) -> Text:
        type_ = op.results[0].type
        widening = self._language.widening(type_)
        if widening is None:
            operands = [self._values.at(operand) for operand in op.operands]
            return Text(self._language.call(FUNCTIONS[type(op)], type_, operands))
        operands = [f"{widening[0]}({self._values.at(operand)})" for operand in op.operands]
        called = self._language.call(FUNCTIONS[type(op)], float_type(self._language), operands)
        return Text(f"{widening[1]}({called})")
