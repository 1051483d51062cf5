"""Scalar operations as C expressions: constants, floats, comparisons, conversions, integers."""

from __future__ import annotations

from typing import cast

from xdsl.dialects import arith, scf, vector
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    VectorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.backends.c_like.language import (
    COMPARISONS,
    CONVERSIONS,
    DIVISIONS,
    FLOAT_COMPARISONS,
    FLOAT_OPERATORS,
    FUNCTIONS,
    INTEGER_FUNCTIONS,
    NEGATED_COMPARISONS,
    OPERATORS,
    UNSIGNED,
    WRAPPING,
    Precedence,
)
from treadle.backends.c_like.values import Text, Values, Writers, float_type, narrowed, number_text, relation, wide
from treadle.dialects.graph.dtypes import is_stored, ui32, ui64
from treadle.dialects.loop import LaneMaskOp
from treadle.dialects.scalar import is_unsigned

# Values that follow from constants.


def constant_integer(value: SSAValue) -> int | None:
    """The number that an integer value is, if it is a constant."""
    if isinstance(value.owner, arith.ConstantOp) and isinstance(value.owner.value, IntegerAttr):
        return value.owner.value.value.data
    return None


def _most_bits(amount: SSAValue) -> int:
    """The most that a value shifts by: a constant, or a constant mask; -1 where it is not known."""
    known = constant_integer(amount)
    if known is None and isinstance(amount.owner, arith.AndIOp):
        known = constant_integer(amount.owner.rhs)
    return -1 if known is None else known


def folded_integer(op: Operation) -> int | None:
    """The sum, difference or product of two constants of type index."""
    if not isinstance(op, arith.AddiOp | arith.SubiOp | arith.MuliOp) or not isinstance(op.result.type, IndexType):
        return None
    lhs, rhs = constant_integer(op.lhs), constant_integer(op.rhs)
    if lhs is None or rhs is None:
        return None
    if isinstance(op, arith.MuliOp):
        return lhs * rhs
    return lhs + rhs if isinstance(op, arith.AddiOp) else lhs - rhs


def splat_number(op: arith.ConstantOp) -> float | None:
    """The number that all lanes of a vector constant are."""
    if not isinstance(op.value, DenseIntOrFPElementsAttr) or not op.value.is_splat():
        return None
    return cast(float, op.value.get_values()[0])


# Constants, and operators and function calls on floats and vectors of floats.


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

    def _vector_operator(self, symbol: str, level: Precedence, lhs: SSAValue, rhs: SSAValue) -> Text:
        # At most one side may be written as a scalar.
        if self._values.splat_scalar(lhs) is not None and self._values.splat_scalar(rhs) is None:
            return Text(
                f"{self._values.vector_operand(lhs, level)} {symbol} {self._values.at(rhs, level.tighter)}", level
            )
        return Text(f"{self._values.at(lhs, level)} {symbol} {self._values.vector_operand(rhs, level.tighter)}", level)

    def _negate(self, op: arith.NegfOp) -> Text:
        operand = wide(self._values, op.operand, Precedence.UNARY)
        operand = f"({operand})" if operand.startswith("-") else operand
        return narrowed(self._language, Text(f"-{operand}", Precedence.UNARY), op.result.type)

    def _call(self, op: Operation) -> Text:
        special = self._language.expression(op, self._values)
        if special is not None:
            return Text(special)
        type_ = op.results[0].type
        widening = self._language.widening(type_)
        if widening is None:
            operands = [self._values.at(operand) for operand in op.operands]
            return Text(self._language.call(FUNCTIONS[type(op)], type_, operands))
        operands = [f"{widening[0]}({self._values.at(operand)})" for operand in op.operands]
        called = self._language.call(FUNCTIONS[type(op)], float_type(self._language), operands)
        return Text(f"{widening[1]}({called})")


# Comparisons, and selections by them.


class Comparisons:
    """Writes operations that compute a truth value, or select by one."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (arith.CmpiOp, self._compare_integers),
            (arith.CmpfOp, self._compare_floats),
            (arith.SelectOp, self._select),
            (scf.IfOp, self._ternary),
        )

    def _compare_integers(self, op: arith.CmpiOp) -> Text:
        symbol, unsigned = COMPARISONS[op.predicate.value.data]
        if not unsigned or is_unsigned(op.lhs.type):
            return relation(
                symbol, self._values.at(op.lhs, Precedence.SHIFT), self._values.at(op.rhs, Precedence.SHIFT)
            )
        cast_to = f"({self._language.unsigned(op.lhs.type)})"
        sides = (f"{cast_to}{self._values.at(side, Precedence.UNARY)}" for side in (op.lhs, op.rhs))
        return relation(symbol, *sides)

    def _compare_floats(self, op: arith.CmpfOp) -> Text:
        predicate = op.predicate.value.data
        lhs, rhs = (wide(self._values, side, Precedence.SHIFT) for side in (op.lhs, op.rhs))
        if predicate in FLOAT_COMPARISONS:
            return relation(FLOAT_COMPARISONS[predicate], lhs, rhs)
        if predicate in NEGATED_COMPARISONS:
            return Text(f"!({lhs} {NEGATED_COMPARISONS[predicate]} {rhs})", Precedence.UNARY)
        name = arith.CMPF_COMPARISON_OPERATIONS[predicate]
        if name in ("false", "true"):
            return Text("0" if name == "false" else "1")
        if name in ("ord", "uno") and op.lhs is op.rhs:
            return relation("==" if name == "ord" else "!=", lhs, rhs)
        type = op.lhs.type if self._language.widening(op.lhs.type) is None else float_type(self._language)
        function = self._language.function("unordered" if name in ("ord", "uno") else "differ", type)
        call = f"{function}({lhs}, {rhs})"
        return Text(call) if name in ("uno", "one") else Text(f"!{call}", Precedence.UNARY)

    def _select(self, op: arith.SelectOp) -> Text:
        is_bound = all(isinstance(use.operation, LaneMaskOp) for use in op.result.uses)
        if is_bound and constant_integer(op.rhs) == 0:
            function = self._language.function("if", op.result.type)
            return Text(f"{function}({self._values.at(op.cond)}, {self._values.at(op.lhs)})")
        return self._choice(op.cond, self._values.text(op.lhs), self._values.text(op.rhs))

    def _choice(self, condition: SSAValue, then: Text, otherwise: Text) -> Text:
        # C needs no parentheses around a selection in the first branch; readers do.
        text = f"{self._values.at(condition, Precedence.OR)} ? {then.at(Precedence.OR)} : {otherwise.text}"
        return Text(text, Precedence.TERNARY)

    def _ternary(self, op: scf.IfOp) -> Text:
        branches = [cast(scf.YieldOp, region.block.last_op).arguments[0] for region in op.regions]
        return self._choice(op.cond, *map(self._branch, branches))

    def _branch(self, value: SSAValue) -> Text:
        """A branch's value, of the type that the other branch's has."""
        text, type = self._values.text(value), value.type
        if not isinstance(value.owner, vector.LoadOp) or not isinstance(type, VectorType):
            return text
        return Text(self._language.loaded(type, text.at(Precedence.UNARY)), Precedence.UNARY)


# Conversions between types of scalars.


class Conversions:
    """Writes casts, and the functions that stand for them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._language = values.language
        self.writers: Writers = (
            (CONVERSIONS, self._convert),
            (arith.BitcastOp, self._bitcast),
        )

    def _convert(self, op: Operation) -> Text:
        source, target = op.operands[0], op.results[0].type
        widening = self._language.widening(source.type)
        if widening is not None and not self._language.has_operators(source.type):
            text, wide = Text(f"{widening[0]}({self._values.at(source)})"), float_type(self._language)
            if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
                return self._whole(wide, target, text)
            narrowing = self._language.narrowing(wide, target)
            if narrowing is not None and not self._language.has_operators(target):
                return Text(f"{narrowing}({text.text})")
            return text if isinstance(op, arith.ExtFOp) else self._cast(target, text)
        narrowing = self._language.narrowing(source.type, target)
        if narrowing is not None and not self._language.has_operators(target):
            return Text(f"{narrowing}({self._values.at(source)})")
        if isinstance(op, arith.FPToSIOp | arith.FPToUIOp):
            return self._whole(source.type, target, self._values.text(source))
        if is_stored(source.type) or is_stored(target):
            return self._stored(source, target)
        one_bit = source.type == IntegerType(1)
        if target == IntegerType(1):
            return Text(f"{self._values.at(source, Precedence.UNARY)} & 1", Precedence.AND_BITS)
        if isinstance(op, arith.ExtSIOp | arith.SIToFPOp) and one_bit:
            return Text(f"-{self._cast(target, self._values.text(source)).text}", Precedence.UNARY)
        if isinstance(op, arith.ExtUIOp | arith.UIToFPOp) and not one_bit and not is_unsigned(source.type):
            return self._cast(target, self._cast_to(self._language.unsigned(source.type), self._values.text(source)))
        return self._cast(target, self._values.text(source))

    def _stored(self, source: SSAValue, target: Attribute) -> Text:
        """Integers of 4 and 2 bits are the low bits of a byte; what the others are does not matter."""
        if is_stored(target):
            assert isinstance(target, IntegerType)
            low = f"{self._values.at(source, Precedence.EQUALITY)} & {(1 << target.width.data) - 1}"
            return self._cast(target, Text(low, Precedence.AND_BITS))
        assert isinstance(source.type, IntegerType)
        bits = source.type.width.data
        low = f"{self._values.at(source, Precedence.EQUALITY)} & {(1 << bits) - 1}"
        if is_unsigned(source.type):
            return self._cast(target, Text(low, Precedence.AND_BITS))
        sign = 1 << bits - 1
        return self._cast(target, Text(f"(({low}) ^ {sign}) - {sign}", Precedence.ADD))

    def _whole(self, source: Attribute, target: Attribute, text: Text) -> Text:
        """A float's whole part, by a function: C leaves the conversion of a value that does not fit undefined."""
        return Text(f"{self._language.truncation(source, target)}({text.text})")

    def _cast(self, type: Attribute, text: Text) -> Text:
        return self._cast_to(self._language.type_name(type), text)

    def _cast_to(self, name: str, text: Text) -> Text:
        return Text(f"({name}){text.at(Precedence.UNARY)}", Precedence.UNARY)

    def _bitcast(self, op: arith.BitcastOp) -> Text:
        same = isinstance(op.input.type, IntegerType) and isinstance(op.result.type, IntegerType)
        if same or is_stored(op.input.type) or is_stored(op.result.type):
            return self._cast(op.result.type, self._values.text(op.input))
        name = "bits" if isinstance(op.result.type, IntegerType) else "from_bits"
        float_type = op.input.type if name == "bits" else op.result.type
        text = Text(f"{self._language.function(name, float_type)}({self._values.at(op.input)})")
        return self._cast(op.result.type, text) if is_unsigned(op.result.type) else text


# Operations on integers, as C expressions with exactly the value that the operation defines.
#
# C computes 8 and 16-bit integers as `int`; operations of `arith` wrap. Sums, differences and products of elements are
# cast back once: `(short)(a * b + c)`. Where a language leaves the overflow of `int` and `long` undefined, they are
# computed as unsigned numbers: `(int)((unsigned)a * b + c)`. An `index` does not overflow, and is written plainly.

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
            text = f"({self._language.type_name(type)}){modular.at(Precedence.UNARY)}"
            return Text(text, Precedence.UNARY, modular)
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
            first = Text(self._unsigned(op.operands[0], lhs), Precedence.UNARY)
        return Text(f"{first.at(level)} {symbol} {(rhs.modular or rhs).at(level.tighter)}", level)

    def _unsigned(self, value: SSAValue, text: Text) -> str:
        return f"({self._language.modular(value.type)}){text.at(Precedence.UNARY)}"

    def _right(self, op: Operation, symbol: str, level: Precedence) -> tuple[str, Text]:
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
        if isinstance(op, arith.ShRSIOp) and isinstance(op.result.type, VectorType) and self._language.wraps:
            return self._of_lanes(op)
        symbol, level = OPERATORS[op.__class__]
        bits = type.width.data if isinstance(type, IntegerType) else 64
        amount = self._values.at(op.operands[1], level.tighter)
        if not 0 <= _most_bits(op.operands[1]) < bits:
            self._language.reject(
                op, f"{op.name} by {amount}", f"a constant from 0 to {bits - 1}, or what is masked by one"
            )
        lhs = self._values.text(op.operands[0])
        if isinstance(type, IndexType) or isinstance(op, arith.ShRSIOp):
            return Text(f"{lhs.at(Precedence.UNARY)} {symbol} {amount}", level)
        unsigned = (
            (lhs.modular or Text(self._unsigned(op.operands[0], lhs), Precedence.UNARY)).at(Precedence.UNARY)
            if isinstance(op, arith.ShLIOp)
            else f"({self._language.unsigned(type)}){lhs.at(Precedence.UNARY)}"
        )
        return Text(f"({self._language.type_name(type)})({unsigned} {symbol} {amount})", Precedence.UNARY)

    def _bits(self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp) -> Text:
        lhs, rhs = op.lhs, op.rhs
        if isinstance(op.result.type, VectorType) and op.result.type.element_type != IntegerType(1):
            return self._of_lanes(op)
        if op.result.type != IntegerType(1):
            symbol, level = OPERATORS[op.__class__]
            return Text(
                f"{self._values.at(lhs, Precedence.UNARY)} {symbol} {self._values.at(rhs, Precedence.UNARY)}", level
            )
        if isinstance(op, arith.XOrIOp):
            if constant_integer(rhs) is not None and abs(constant_integer(rhs) or 0) == _TRUE_BIT:
                return Text(f"!{self._values.at(lhs, Precedence.UNARY)}", Precedence.UNARY)
            return Text(
                f"{self._values.at(lhs, Precedence.RELATION)} != {self._values.at(rhs, Precedence.RELATION)}",
                Precedence.EQUALITY,
            )
        symbol, level = ("&&", Precedence.AND) if isinstance(op, arith.AndIOp) else ("||", Precedence.OR)
        sides = (self._values.text(lhs), self._values.text(rhs))
        # compilers warn about `a && b || c`, which is hard to read.
        parts = [t.text if t.level is level else t.at(Precedence.EQUALITY) for t in sides]
        return Text(f" {symbol} ".join(parts), level)

    def _call(self, op: Operation) -> Text:
        function = self._language.function(INTEGER_FUNCTIONS[type(op)], op.results[0].type)
        return Text(f"{function}({', '.join(self._values.at(operand) for operand in op.operands)})")
