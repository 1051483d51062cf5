"""Softmax and the Gaussian error linear unit, as exporters write them out."""

from __future__ import annotations

from math import pi, sqrt

from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, SoftmaxOp, UnaryOp
from treadle.dialects.graph.dtypes import is_float
from treadle.passes.graph.recognize.patterns import Capture, Number, Pattern, Product, Reduced, unary
from treadle.passes.graph.rewriting import replace, shape_of

X = Capture("x")
_WEIGHTS = Capture("weights", unary("exp", X - Reduced("max", X)))
_TOTAL = Reduced("add", _WEIGHTS)
_SOFTMAX = _WEIGHTS / _TOTAL | _WEIGHTS * unary("reciprocal", _TOTAL)


class WrittenSoftmax(RewritePattern):
    """`e / sum(e)` with `e = exp(x - max(x))`, over one dimension, is a `softmax`.

    Without the maximum it stays: it overflows where softmax does not.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for match in _SOFTMAX.matches(op.result):
            if match.dims is not None and len(match.dims) == 1:
                replace(rewriter, op, SoftmaxOp(match["x"], match.dims[0]))
                return


def _scaled(scale: float) -> Pattern:
    return X * Number(scale) | X / Number(1 / scale)


_CUBIC, _ROOT = Number(0.044715), Number(sqrt(2 / pi))
_CUBE = Product((_CUBIC, X, X, X)) | Product((_CUBIC, X, X ** Number(2.0))) | Product((_CUBIC, X ** Number(3.0)))
_SQUARE = Product((_CUBIC, X, X)) | Product((_CUBIC, X ** Number(2.0)))
_GATES = {
    "gelu": unary("erf", _scaled(sqrt(0.5))),
    "gelu_tanh": unary("tanh", Product((_ROOT, X + _CUBE)) | Product((_ROOT, X, Number(1.0) + _SQUARE))),
}
_GELUS = {kind: Product((Number(0.5), X, Number(1.0) + gate)) for kind, gate in _GATES.items()}


class WrittenGelu(RewritePattern):
    """`0.5 * x * (1 + erf(x / sqrt(2)))`, its factors in any order, is `gelu`: without a division, and with a name in a
    kernel's label.

    `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))` is `gelu_tanh`. Source: Hendrycks and Gimpel,
    "Gaussian error linear units", 2016.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        if not is_float(op.type.get_element_type()):
            return
        for kind, pattern in _GELUS.items():
            for match in pattern.matches(op.result):
                if shape_of(match["x"]) == op.shape:
                    replace(rewriter, op, UnaryOp(kind, match["x"]))
                    return


SOFTMAX: tuple[type[RewritePattern], ...] = (WrittenSoftmax,)
GELU: tuple[type[RewritePattern], ...] = (WrittenGelu,)
"""This file's patterns."""
