"""Elementwise operators that are one of their operands, or that a cheaper operator computes exactly."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, BroadcastOp, CastOp, WhereOp
from treadle.dialects.graph.dtypes import is_float_dtype, represents
from treadle.passes.graph.rewriting import (
    Array,
    constant_of,
    constant_op,
    is_uniform,
    replace,
    shape_of,
    tensor,
)

_RIGHT_IDENTITY = {"add": -0.0, "sub": 0.0, "mul": 1, "div": 1, "pow": 1, "or": 0, "xor": 0, "and": -1}
_COMMUTATIVE = ("add", "mul", "or", "xor", "and")


def give(rewriter: PatternRewriter, op: Operation, value: SSAValue) -> None:
    """Replaces an elementwise operator by one of its operands, broadcast to the result's shape."""
    shape = shape_of(op.results[0])
    replace(rewriter, op, value if shape_of(value) == shape else BroadcastOp(value, shape))


class NeutralOperand(RewritePattern):
    """`x * 1`, `x + -0.0`, `x - 0.0`, `x / 1`, `x ** 1`, and the like on integers and bools, give `x`.

    Where `x` is the float -0, `x + 0.0` is 0, and so is `x - -0.0`.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        neutral = _RIGHT_IDENTITY.get(op.kind.data)
        if neutral is None or DYNAMIC_INDEX in op.shape:
            return
        sides = [(op.lhs, op.rhs)] + ([(op.rhs, op.lhs)] if op.kind.data in _COMMUTATIVE else [])
        for kept, other in sides:
            constant = constant_of(other)
            if constant is not None and _is_neutral(constant, neutral):
                give(rewriter, op, kept)
                return


def _is_neutral(constant: Array, neutral: float) -> bool:
    """Whether every element is this number; that of floats also in its sign."""
    if not is_uniform(constant, bool(neutral) if constant.dtype == np.bool_ else neutral):
        return False
    return not is_float_dtype(constant.dtype) or bool(np.all(np.signbit(constant) == np.signbit(neutral)))


class SmallPower(RewritePattern):
    """`x ** 2` is `x * x`, `x ** 3` is `x * x * x`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        exponent = constant_of(op.rhs) if op.kind.data == "pow" else None
        if exponent is None or shape_of(op.lhs) != op.shape:
            return
        if is_uniform(exponent, 2):
            replace(rewriter, op, BinaryOp("mul", op.lhs, op.lhs))
        elif is_uniform(exponent, 3):
            square = BinaryOp("mul", op.lhs, op.lhs)
            replace(rewriter, op, [square, BinaryOp("mul", square.result, op.lhs)])


class DivisionByPowerOfTwo(RewritePattern):
    """`x / 8.0` is `x * 0.125`: exact where the divisor is a power of two."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        divisor = constant_of(op.rhs) if op.kind.data == "div" else None
        if divisor is None or divisor.dtype.kind != "f" or not _has_exact_reciprocal(divisor):
            return
        reciprocal = constant_op(np.asarray(divisor.dtype.type(1) / divisor))
        replace(rewriter, op, [reciprocal, BinaryOp("mul", op.lhs, reciprocal.result)])


def _has_exact_reciprocal(array: Array) -> bool:
    if array.size == 0 or not np.all(np.isfinite(array)):
        return False
    mantissa, exponent = np.frexp(array)
    smallest = np.finfo(array.dtype).minexp
    return bool(np.all(np.abs(mantissa) == 0.5) and np.all(np.abs(exponent) < -smallest))


class CastToOwnType(RewritePattern):
    """A cast to a tensor's own type is the tensor; so is a cast to a type that represents all its values, and back."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: CastOp, rewriter: PatternRewriter) -> None:
        if op.x.type == op.result.type:
            replace(rewriter, op, op.x)
            return
        inner = op.x.owner
        if not isinstance(inner, CastOp) or inner.x.type != op.result.type:
            return
        narrow, wide = (tensor(v).get_element_type() for v in (inner.x, inner.result))
        if represents(wide, narrow):
            replace(rewriter, op, inner.x)


class KnownCondition(RewritePattern):
    """`where` of a constant condition, or of equal branches, is a branch."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: WhereOp, rewriter: PatternRewriter) -> None:
        if DYNAMIC_INDEX in op.shape:
            return
        if op.a is op.b:
            give(rewriter, op, op.a)
            return
        condition = constant_of(op.condition)
        if condition is None or condition.size == 0:
            return
        if condition.all() or not condition.any():
            give(rewriter, op, op.a if condition.all() else op.b)


class DoubledComparand(RewritePattern):
    """`max(x, x)`, `min(x, x)`, `x and x`, `x or x` give `x`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        if op.kind.data in ("max", "min", "and", "or") and op.lhs is op.rhs:
            replace(rewriter, op, op.lhs)


ARITHMETIC: tuple[type[RewritePattern], ...] = (
    NeutralOperand, SmallPower, DivisionByPowerOfTwo, CastToOwnType, KnownCondition, DoubledComparand,
)  # fmt: skip
"""This file's patterns."""
