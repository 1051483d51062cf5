"""Comparisons, and selections by them."""

from __future__ import annotations

from typing import cast

from xdsl.dialects import arith, scf, vector
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from treadle.backends.c_like.constants import constant_integer
from treadle.backends.c_like.operators import COMPARISONS, FLOAT_COMPARISONS, NEGATED_COMPARISONS, Level
from treadle.backends.c_like.values import Text, Values, Writers, float_type, relation, wide
from treadle.dialects.loop import LaneMaskOp
from treadle.dialects.scalar import is_unsigned


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
            return relation(symbol, self._values.at(op.lhs, Level.SHIFT), self._values.at(op.rhs, Level.SHIFT))
        cast_to = f"({self._language.unsigned(op.lhs.type)})"
        sides = (f"{cast_to}{self._values.at(side, Level.UNARY)}" for side in (op.lhs, op.rhs))
        return relation(symbol, *sides)

    def _compare_floats(self, op: arith.CmpfOp) -> Text:
        predicate = op.predicate.value.data
        lhs, rhs = (wide(self._values, side, Level.SHIFT) for side in (op.lhs, op.rhs))
        if predicate in FLOAT_COMPARISONS:
            return relation(FLOAT_COMPARISONS[predicate], lhs, rhs)
        if predicate in NEGATED_COMPARISONS:
            return Text(f"!({lhs} {NEGATED_COMPARISONS[predicate]} {rhs})", Level.UNARY)
        name = arith.CMPF_COMPARISON_OPERATIONS[predicate]
        if name in ("false", "true"):
            return Text("0" if name == "false" else "1")
        if name in ("ord", "uno") and op.lhs is op.rhs:
            return relation("==" if name == "ord" else "!=", lhs, rhs)
        type = op.lhs.type if self._language.widening(op.lhs.type) is None else float_type(self._language)
        function = self._language.function("unordered" if name in ("ord", "uno") else "differ", type)
        call = f"{function}({lhs}, {rhs})"
        return Text(call) if name in ("uno", "one") else Text(f"!{call}", Level.UNARY)

    def _select(self, op: arith.SelectOp) -> Text:
        is_bound = all(isinstance(use.operation, LaneMaskOp) for use in op.result.uses)
        if is_bound and constant_integer(op.rhs) == 0:
            function = self._language.function("if", op.result.type)
            return Text(f"{function}({self._values.at(op.cond)}, {self._values.at(op.lhs)})")
        return self._choice(op.cond, self._values.text(op.lhs), self._values.text(op.rhs))

    def _choice(self, condition: SSAValue, then: Text, otherwise: Text) -> Text:
        # C needs no parentheses around a selection in the first branch; readers do.
        text = f"{self._values.at(condition, Level.OR)} ? {then.at(Level.OR)} : {otherwise.text}"
        return Text(text, Level.TERNARY)

    def _ternary(self, op: scf.IfOp) -> Text:
        branches = [cast(scf.YieldOp, region.block.last_op).arguments[0] for region in op.regions]
        return self._choice(op.cond, *map(self._branch, branches))

    def _branch(self, value: SSAValue) -> Text:
        """A branch's value, of the type that the other branch's has."""
        text, type = self._values.text(value), value.type
        if not isinstance(value.owner, vector.LoadOp) or not isinstance(type, VectorType):
            return text
        return Text(self._language.loaded(type, text.at(Level.UNARY)), Level.UNARY)
