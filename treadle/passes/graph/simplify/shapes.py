"""Operators that move elements: chains that are equal to one operator, and operators that move nothing."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import (
    BroadcastOp,
    ConcatOp,
    GatherOp,
    PadOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
)
from treadle.dialects.graph.definition import Operator, int_list
from treadle.passes.graph.rewriting import constant_of, replace, shape_of


class MovesNothing(RewritePattern):
    """Reshape, broadcast, slice, pad and resize to a tensor's own shape are the tensor."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if isinstance(op, ConcatOp) and len(op.inputs) == 1:
            replace(rewriter, op, op.inputs[0])
            return
        if not isinstance(op, ReshapeOp | BroadcastOp | SliceOp | PadOp | ResizeOp) or DYNAMIC_INDEX in op.shape:
            return
        if op.x.type == op.result.type and not _reverses(op):
            replace(rewriter, op, op.x)


def _reverses(op: Operator) -> bool:
    """Whether a slice that keeps the shape has a dimension that runs backwards."""
    if not isinstance(op, SliceOp):
        return False
    steps = int_list(op.properties, "steps")
    return any(step < 0 and extent > 1 for step, extent in zip(steps, op.shape, strict=True))


class ReshapeOfReshape(RewritePattern):
    """Only the last of several reshapes counts."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshapeOp, rewriter: PatternRewriter) -> None:
        if isinstance(inner := op.x.owner, ReshapeOp) and -1 not in op.shape:
            replace(rewriter, op, ReshapeOp(inner.x, op.shape))


class BroadcastOfBroadcast(RewritePattern):
    """Only the last of several broadcasts counts."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BroadcastOp, rewriter: PatternRewriter) -> None:
        if isinstance(inner := op.x.owner, BroadcastOp) and -1 not in op.shape:
            replace(rewriter, op, BroadcastOp(inner.x, op.shape))


class TransposeOfTranspose(RewritePattern):
    """Two permutations are one."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter) -> None:
        if not isinstance(inner := op.x.owner, TransposeOp):
            return
        first, second = (int_list(t.properties, "perm") for t in (inner, op))
        replace(rewriter, op, TransposeOp(inner.x, [first[p] for p in second]))


class TransposeOfUnits(RewritePattern):
    """A permutation that keeps the order of all dimensions but those of extent 1 is a reshape, or nothing."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter) -> None:
        source, perm = shape_of(op.x), int_list(op.properties, "perm")
        order = [p for p in perm if source[p] != 1]
        if perm == tuple(range(len(perm))):
            replace(rewriter, op, op.x)
        elif order == sorted(order) and -1 not in source:
            replace(rewriter, op, ReshapeOp(op.x, op.shape))


class SliceOfSlice(RewritePattern):
    """A slice of a slice is a slice."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SliceOp, rewriter: PatternRewriter) -> None:
        if not isinstance(inner := op.x.owner, SliceOp):
            return
        names = ("starts", "steps")
        (start, step), (first, stride) = ([int_list(s.properties, n) for n in names] for s in (op, inner))
        starts = [f + s * i for f, s, i in zip(first, stride, start, strict=True)]
        steps = [s * t for s, t in zip(stride, step, strict=True)]
        sizes = int_list(op.properties, "sizes")
        # An empty slice may start beyond the end of what it slices.
        if 0 not in sizes:
            replace(rewriter, op, SliceOp(inner.x, starts, sizes, steps))


class GatherOfConstant(RewritePattern):
    """A gather at one known index, or at evenly spaced ones, is a slice (and a reshape)."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: GatherOp, rewriter: PatternRewriter) -> None:
        indices, shape, dim = constant_of(op.indices), shape_of(op.data), op.dim.value.data
        if indices is None or indices.size == 0 or DYNAMIC_INDEX in shape or 0 in shape:
            return
        extent = shape[dim]
        flat = indices.reshape(-1).astype(np.int64)
        flat = np.clip(np.where(flat < 0, flat + extent, flat), 0, extent - 1)
        steps = np.diff(flat)
        if steps.size and (steps[0] == 0 or np.any(steps != steps[0])):
            return
        starts, sizes, strides = [0] * len(shape), list(shape), [1] * len(shape)
        starts[dim], sizes[dim] = int(flat[0]), flat.size
        strides[dim] = int(steps[0]) if steps.size else 1
        sliced = SliceOp(op.data, starts, sizes, strides)
        replace(rewriter, op, [sliced, ReshapeOp(sliced.result, op.shape)])


class ReductionOfUnits(RewritePattern):
    """A reduction over dimensions of extent 1 only is a reshape."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReductionOp, rewriter: PatternRewriter) -> None:
        shape = shape_of(op.x)
        if -1 not in shape and all(shape[d] == 1 for d in int_list(op.properties, "dims")):
            replace(rewriter, op, ReshapeOp(op.x, op.shape))


SHAPES: tuple[type[RewritePattern], ...] = (
    MovesNothing, ReshapeOfReshape, BroadcastOfBroadcast, TransposeOfTranspose, TransposeOfUnits,
    SliceOfSlice, GatherOfConstant, ReductionOfUnits,
)  # fmt: skip
"""This file's patterns."""
