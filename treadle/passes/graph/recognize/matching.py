"""Questions about values that the patterns of graph-recognize share."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, pi, prod, sqrt

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, ReductionOp, ReshapeOp, SoftmaxOp, UnaryOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import epsilon, is_float, is_float_dtype
from treadle.passes.graph.rewriting import constant_of, replace, shape_of


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


# Softmax, as exporters write it out.


class WrittenSoftmax(RewritePattern):
    """`e / sum(e)` with `e = exp(x - max(x))`, over one dimension, is a `softmax`.

    Without the maximum it stays: it overflows where softmax does not.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for weights, total in _quotients(op.result):
            dim = _folded(total, "add", weights)
            exponent = unary(weights, "exp")
            difference = None if exponent is None else binary(exponent, "sub")
            if dim is None or difference is None or _folded(difference[1], "max", difference[0]) != dim:
                continue
            replace(rewriter, op, SoftmaxOp(difference[0], dim))
            return


def _quotients(value: SSAValue) -> list[tuple[SSAValue, SSAValue]]:
    """Pairs (a, b) for which a value is `a / b`."""
    direct = binary(value, "div")
    pairs = [] if direct is None else [direct]
    for a, other in either(value, "mul"):
        below = unary(other, "reciprocal")
        pairs += [] if below is None else [(a, below)]
    return pairs


def _folded(value: SSAValue, kind: str, x: SSAValue) -> int | None:
    """The dimension over which a value is the reduction of `x`, if that is one, and kept."""
    op = value.owner
    if not isinstance(op, ReductionOp) or op.kind.data != kind or op.x is not x or not op.keep.value.data:
        return None
    dims = int_list(op.properties, "dims")
    return dims[0] if len(dims) == 1 else None


SOFTMAX: tuple[type[RewritePattern], ...] = (WrittenSoftmax,)
"""This file's patterns."""


# The Gaussian error linear unit, as exporters write it out: by the error function, or by tanh.
#
# Recognised, it has no division (`x / sqrt(2)` is written with one), and a name in a kernel's label.


class WrittenGelu(RewritePattern):
    """`0.5 * x * (1 + erf(x / sqrt(2)))`, its factors in any order, is `gelu`.

    `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))` is `gelu_tanh`. Source: Hendrycks and Gimpel,
    "Gaussian error linear units", 2016.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        if op.kind.data != "mul" or not is_float(op.type.get_element_type()):
            return
        found = factors(op.result)
        if len(found) != 3 or not any(is_number(f, 0.5) for f in found):
            return
        for gate in found:
            others = [f for f in found if f is not gate and not is_number(f, 0.5)]
            kind = _gated_by(gate, others[0]) if len(others) == 1 else None
            if kind is not None and shape_of(others[0]) == op.shape:
                replace(rewriter, op, UnaryOp(kind, others[0]))
                return


def _gated_by(gate: SSAValue, x: SSAValue) -> str | None:
    """The kind of gelu whose gate `1 + f(x)` a value is."""
    for inner, one in either(gate, "add"):
        if not is_number(one, 1.0):
            continue
        erf, tanh = unary(inner, "erf"), unary(inner, "tanh")
        if erf is not None and _is_scaled(erf, x, sqrt(0.5)):
            return "gelu"
        if tanh is not None and _is_tanh_argument(tanh, x):
            return "gelu_tanh"
    return None


def _is_scaled(value: SSAValue, x: SSAValue, scale: float) -> bool:
    quotient = binary(value, "div")
    if quotient is not None:
        return quotient[0] is x and is_number(quotient[1], 1 / scale)
    return any(a is x and is_number(b, scale) for a, b in either(value, "mul"))


def _is_tanh_argument(value: SSAValue, x: SSAValue) -> bool:
    """Whether a value is `sqrt(2 / pi) * (x + 0.044715 * x ** 3)`, or the same with x taken out of the sum."""
    found = factors(value)
    rest = [f for f in found if not is_number(f, sqrt(2 / pi))]
    if len(rest) == len(found) - 1 and len(rest) == 1:
        return any(a is x and _is_product(b, x, 3) for a, b in either(rest[0], "add"))
    if len(rest) == len(found) - 1 and len(rest) == 2 and any(f is x for f in rest):
        other = next((f for f in rest if f is not x), None)
        return other is not None and any(is_number(a, 1.0) and _is_product(b, x, 2) for a, b in either(other, "add"))
    return False


def _is_product(value: SSAValue, x: SSAValue, times: int) -> bool:
    """Whether a value is `0.044715 * x ** times`."""
    found: list[SSAValue] = []
    for factor in factors(value):
        power = binary(factor, "pow")
        exponent = next((n for n in (2, 3) if power is not None and is_number(power[1], n)), None)
        found += [factor] if power is None or exponent is None else [power[0]] * exponent
    rest = [f for f in found if not is_number(f, 0.044715)]
    return len(found) == times + 1 and len(rest) == times and all(f is x for f in rest)


GELU: tuple[type[RewritePattern], ...] = (WrittenGelu,)
"""This file's patterns."""
