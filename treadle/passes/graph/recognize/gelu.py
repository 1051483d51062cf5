"""The Gaussian error linear unit, as exporters write it out: by the error function, or by tanh.

Recognised, it has no division (`x / sqrt(2)` is written with one), and a name in a kernel's label.
"""

from __future__ import annotations

from math import pi, sqrt

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, UnaryOp
from treadle.dialects.graph.dtypes import is_float
from treadle.passes.graph.recognize.matching import binary, either, factors, is_number, unary
from treadle.passes.graph.rewriting import replace, shape_of


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
