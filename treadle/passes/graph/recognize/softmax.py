"""Softmax, as exporters write it out."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, ReductionOp, SoftmaxOp
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.recognize.matching import binary, either, unary
from treadle.passes.graph.rewriting import replace


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
