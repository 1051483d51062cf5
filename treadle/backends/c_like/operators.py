"""Which operator or function of C each operation of arith and math is."""

from __future__ import annotations

from enum import IntEnum

from xdsl.dialects import arith, math, vector
from xdsl.ir import Operation

from treadle.dialects.scalar_functions import FUNCTION_OF, ScalarFunction


class Level(IntEnum):
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
    def tighter(self) -> Level:
        """The precedence that the right operand of a left-associative operator needs."""
        return Level(min(level for level in Level if level > self))


OPERATORS: dict[type[Operation], tuple[str, Level]] = {
    arith.AddiOp: ("+", Level.ADD),
    arith.SubiOp: ("-", Level.ADD),
    arith.MuliOp: ("*", Level.MULTIPLY),
    arith.DivSIOp: ("/", Level.MULTIPLY),
    arith.DivUIOp: ("/", Level.MULTIPLY),
    arith.RemSIOp: ("%", Level.MULTIPLY),
    arith.RemUIOp: ("%", Level.MULTIPLY),
    arith.ShLIOp: ("<<", Level.SHIFT),
    arith.ShRSIOp: (">>", Level.SHIFT),
    arith.ShRUIOp: (">>", Level.SHIFT),
    arith.AddfOp: ("+", Level.ADD),
    arith.SubfOp: ("-", Level.ADD),
    arith.MulfOp: ("*", Level.MULTIPLY),
    arith.DivfOp: ("/", Level.MULTIPLY),
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
