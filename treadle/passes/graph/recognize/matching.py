"""Questions about values that the patterns of graph-recognize share."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, prod

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import SSAValue

from treadle.dialects.graph import BinaryOp, ReductionOp, ReshapeOp, UnaryOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import epsilon, is_float_dtype
from treadle.passes.graph.rewriting import constant_of, shape_of


def scalar_of(value: SSAValue) -> float | None:
    """The number that a constant holds in each of its elements; None for any other value."""
    constant = constant_of(value)
    if constant is None or constant.size == 0 or not is_float_dtype(constant.dtype):
        return None
    first = constant.reshape(-1)[0]
    return float(first) if bool(np.all(constant == first)) else None


def is_number(value: SSAValue, number: float) -> bool:
    """Whether a value is a constant equal to `number`, up to the rounding of its type and of a literal."""
    found = scalar_of(value)
    constant = constant_of(value)
    if found is None or constant is None:
        return False
    return isclose(found, number, rel_tol=4 * epsilon(constant.dtype))


def binary(value: SSAValue, kind: str) -> tuple[SSAValue, SSAValue] | None:
    """The operands of the `graph.binary` of that kind that gives a value."""
    op = value.owner
    return (op.lhs, op.rhs) if isinstance(op, BinaryOp) and op.kind.data == kind else None


def either(value: SSAValue, kind: str) -> Iterator[tuple[SSAValue, SSAValue]]:
    """The operands of a commutative `graph.binary`, in both orders; nothing for another value."""
    operands = binary(value, kind)
    if operands is not None:
        yield operands
        yield operands[1], operands[0]


def unary(value: SSAValue, kind: str) -> SSAValue | None:
    """The operand of the `graph.unary` of that kind that gives a value."""
    op = value.owner
    return op.x if isinstance(op, UnaryOp) and op.kind.data == kind else None


def factors(value: SSAValue) -> list[SSAValue]:
    """What is multiplied to give a value, through products that nothing else uses."""
    operands = binary(value, "mul")
    if operands is None:
        return [value]
    return [f for o in operands for f in (factors(o) if o.has_one_use() or o is value else [o])]


def same_value(a: SSAValue, b: SSAValue) -> bool:
    """Whether two values are one, or reshapes of one to the same shape."""
    return a is b or (
        isinstance(a.owner, ReshapeOp)
        and isinstance(b.owner, ReshapeOp)
        and a.type == b.type
        and a.owner.x is b.owner.x
    )


def row_mean(value: SSAValue) -> tuple[SSAValue, int] | None:
    """What a value is the mean of, and the first of the trailing dimensions that are averaged.

    The mean keeps its dimensions. It is a `graph.reduction "mean"`, or a sum divided by (or multiplied with the
    reciprocal of) the number of its terms.
    """
    op = value.owner
    if isinstance(op, ReductionOp):
        return _trailing(op) if op.kind.data == "mean" else None
    quotient, scaled = binary(value, "div"), binary(value, "mul")
    total, count = quotient or scaled or (None, None)
    if total is None or count is None or not isinstance(total.owner, ReductionOp) or total.owner.kind.data != "add":
        return None
    found = _trailing(total.owner)
    if found is None:
        return None
    terms = prod(shape_of(found[0])[found[1] :])
    return found if is_number(count, terms if quotient else 1 / terms) else None


def _trailing(op: ReductionOp) -> tuple[SSAValue, int] | None:
    dims, shape = sorted(int_list(op.properties, "dims")), shape_of(op.x)
    first = len(shape) - len(dims)
    if not dims or dims != list(range(first, len(shape))) or DYNAMIC_INDEX in shape:
        return None
    return (op.x, first) if op.keep.value.data else None


def inverse_root(value: SSAValue) -> SSAValue | None:
    """What a value is the reciprocal square root of."""
    direct = unary(value, "rsqrt")
    if direct is not None:
        return direct
    flipped = unary(value, "reciprocal")
    quotient = binary(value, "div")
    if flipped is None and quotient is not None and is_number(quotient[0], 1.0):
        flipped = quotient[1]
    if flipped is not None:
        return root(flipped)
    power = binary(value, "pow")
    return power[0] if power is not None and is_number(power[1], -0.5) else None


def root(value: SSAValue) -> SSAValue | None:
    """What a value is the square root of."""
    direct = unary(value, "sqrt")
    if direct is not None:
        return direct
    power = binary(value, "pow")
    return power[0] if power is not None and is_number(power[1], 0.5) else None


def divided_by_root(value: SSAValue) -> Iterator[tuple[SSAValue, SSAValue]]:
    """Pairs (x, y) for which a value is `x / sqrt(y)`."""
    quotient = binary(value, "div")
    below = None if quotient is None else root(quotient[1])
    if quotient is not None and below is not None:
        yield quotient[0], below
    for x, other in either(value, "mul"):
        below = inverse_root(other)
        if below is not None:
            yield x, below


__all__ = [
    "binary", "divided_by_root", "either", "factors", "inverse_root", "is_number", "root", "row_mean", "same_value",
    "scalar_of", "unary",
]  # fmt: skip
