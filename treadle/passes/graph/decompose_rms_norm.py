"""The pattern of graph-decompose that writes out root-mean-square normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, ReductionOp, RmsNormOp, UnaryOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.passes.graph.one_kernel import is_one_kernel
from treadle.passes.graph.rewriting import constant_op, replace


@dataclass(frozen=True)
class DecomposeRmsNorm(RewritePattern):
    """RMS normalisation as a sum of squares, and a product with one reciprocal square root a row.

    always: decompose even what a template schedules whole
    """

    always: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: RmsNormOp, rewriter: PatternRewriter) -> None:
        if DYNAMIC_INDEX in op.shape or (not self.always and is_one_kernel(op)):
            return
        dims = range(op.dim.value.data, len(op.shape))
        dtype = numpy_dtype(op.type.get_element_type())
        count = constant_op(np.array(prod(op.shape[d] for d in dims), dtype))
        epsilon = constant_op(np.array(op.epsilon.value.data, dtype))
        squares = BinaryOp("mul", op.x, op.x)
        total = ReductionOp("add", squares.result, dims, keep=True)
        mean = BinaryOp("div", total.result, count.result)
        spread = BinaryOp("add", mean.result, epsilon.result)
        inverse = UnaryOp("rsqrt", spread.result)
        normal = BinaryOp("mul", op.x, inverse.result)
        steps = [count, epsilon, squares, total, mean, spread, inverse, normal]
        replace(rewriter, op, [*steps, BinaryOp("mul", normal.result, op.scale)])


__all__ = ["DecomposeRmsNorm"]
