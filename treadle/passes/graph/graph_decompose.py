"""graph-decompose: operators whose definition no template schedules become simpler ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    BinaryOp,
    CastOp,
    LayerNormOp,
    PoolOp,
    ReductionOp,
    RmsNormOp,
    SoftmaxOp,
    UnaryOp,
    definition,
)
from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import accumulator, numpy_dtype
from treadle.dialects.graph.evaluate import evaluate_compute
from treadle.passes.graph.one_kernel import is_one_kernel
from treadle.passes.graph.rewriting import Array, constant_op, replace, shape_of

# The pattern of graph-decompose that writes out root-mean-square normalisation.


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


@dataclass(frozen=True)
class GraphDecomposePass(ModulePass):
    """Writes the reduction "mean", padded average pooling, and softmax, layer_norm and rms_norm as simpler operators.

    ```mlir
    %y = graph.softmax %x {dim = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    ```
    becomes
    ```mlir
    %m = graph.reduction "max" %x {dims = array<i64: 1>, keep = 1 : i64} : (...) -> tensor<4x1xf32>
    %d = graph.binary "sub" %x, %m : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
    %e = graph.unary "exp" %d : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %s = graph.reduction "add" %e {dims = array<i64: 1>, keep = 1 : i64} : (...) -> tensor<4x1xf32>
    %y = graph.binary "div" %e, %s : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
    ```
    Softmax and layer_norm stay if their definition is a row computation that is worth one kernel; not with `rows`.
    What is written out of 16-bit floats is computed in float32 between casts, as its definition says.
    A padded average pooling becomes a `graph.compute` that reads the number of elements under each window
    from a constant, instead of counting them.
    """

    name = "graph-decompose"
    rows: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns: list[RewritePattern] = [
            Widen(self.rows), DecomposeSoftmax(self.rows), DecomposeLayerNorm(self.rows), DecomposeRmsNorm(self.rows),
            DecomposeMean(), HoistWindowCount(),
        ]  # fmt: skip
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns)).rewrite_module(op)


@dataclass(frozen=True)
class Widen(RewritePattern):
    """What sums 16-bit floats, and is about to be written out, in float32 between casts.

    always: even if a template schedules it whole
    """

    always: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: SoftmaxOp | LayerNormOp | RmsNormOp | ReductionOp, rewriter: PatternRewriter
    ) -> None:
        element = op.type.get_element_type()
        wide = accumulator(element)
        if wide == element or (isinstance(op, ReductionOp) and op.kind.data != "mean"):
            return
        if not isinstance(op, ReductionOp) and not self.always and is_one_kernel(op):
            return
        casts = [CastOp(operand, wide) for operand in op.operands]
        inner = type(op).create(
            operands=[cast.result for cast in casts],
            result_types=[TensorType(wide, op.shape)],
            properties=op.properties,
        )
        replace(rewriter, op, [*casts, inner, CastOp(inner.results[0], element)])


@dataclass(frozen=True)
class DecomposeSoftmax(RewritePattern):
    """Softmax as maximum, difference, exponential, sum, quotient.

    always: decompose even what a template schedules whole
    """

    always: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SoftmaxOp, rewriter: PatternRewriter) -> None:
        if not self.always and is_one_kernel(op):
            return
        dims = [op.dim.value.data]
        largest = ReductionOp("max", op.x, dims, keep=True)
        difference = BinaryOp("sub", op.x, largest.result)
        exponential = UnaryOp("exp", difference.result)
        total = ReductionOp("add", exponential.result, dims, keep=True)
        quotient = BinaryOp("div", exponential.result, total.result)
        replace(rewriter, op, [largest, difference, exponential, total, quotient])


@dataclass(frozen=True)
class DecomposeLayerNorm(RewritePattern):
    """Layer normalisation as mean, deviation, variance, and a product with one reciprocal square root a row.

    always: decompose even what a template schedules whole
    """

    always: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: LayerNormOp, rewriter: PatternRewriter) -> None:
        if DYNAMIC_INDEX in op.shape or (not self.always and is_one_kernel(op)):
            return
        dims = range(op.dim.value.data, len(op.shape))
        dtype = numpy_dtype(op.type.get_element_type())
        count = constant_op(np.array(prod(op.shape[d] for d in dims), dtype))
        epsilon = constant_op(np.array(op.epsilon.value.data, dtype))
        steps: list[Operation] = [count, epsilon]

        def step(new: Operation) -> SSAValue:
            steps.append(new)
            return new.results[0]

        total = step(ReductionOp("add", op.x, dims, keep=True))
        deviation = step(BinaryOp("sub", op.x, step(BinaryOp("div", total, count.result))))
        squares = step(ReductionOp("add", step(BinaryOp("mul", deviation, deviation)), dims, keep=True))
        variance = step(BinaryOp("div", squares, count.result))
        spread = step(UnaryOp("rsqrt", step(BinaryOp("add", variance, epsilon.result))))
        scaled = step(BinaryOp("mul", step(BinaryOp("mul", deviation, spread)), op.scale))
        step(BinaryOp("add", scaled, op.bias))
        replace(rewriter, op, steps)


class DecomposeMean(RewritePattern):
    """A mean as a sum and a quotient."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReductionOp, rewriter: PatternRewriter) -> None:
        dims, shape = int_list(op.properties, "dims"), shape_of(op.x)
        if op.kind.data != "mean" or any(shape[d] == DYNAMIC_INDEX for d in dims):
            return
        total = ReductionOp("add", op.x, dims, keep=bool(op.keep.value.data))
        count = constant_op(np.array(prod(shape[d] for d in dims), numpy_dtype(op.type.get_element_type())))
        replace(rewriter, op, [total, count, BinaryOp("div", total.result, count.result)])


class HoistWindowCount(RewritePattern):
    """Average pooling whose divisor varies: its definition with the divisor read from a constant."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: PoolOp, rewriter: PatternRewriter) -> None:
        if op.kind.data != "avg" or DYNAMIC_INDEX in op.shape:
            return
        compute = definition(op)
        counts = [r for r in compute.body.block.ops if isinstance(r, ReduceOp) and not _reads(r)]
        if not counts:
            compute.erase()
            return
        constants: list[Operation] = []
        for count in counts:
            values, dims = _value_of(compute, count)
            constant = constant_op(values)
            constants.append(constant)
            read = AtOp(constant.result, [compute.body.block.args[d] for d in dims])
            Rewriter.insert_op(read, InsertPoint.before(count))
            count.result.replace_all_uses_with(read.result)
            Rewriter.erase_op(count)
        replace(rewriter, op, [*constants, compute])


def _reads(op: ReduceOp) -> bool:
    return any(isinstance(inner, AtOp) for inner in op.walk())


def _value_of(compute: ComputeOp, reduce: ReduceOp) -> tuple[Array, list[int]]:
    """The values of a reduction that reads no tensor, over the dimensions that it depends on; and these dimensions."""
    copy = compute.clone()
    position = list(compute.body.block.ops).index(reduce)
    ops = list(copy.body.block.ops)
    for op in reversed(ops[position + 1 :]):
        op.detach()
        op.erase()
    copy.body.block.add_op(YieldOp(ops[position].results[0]))
    for op in reversed(ops[:position]):
        if not any(result.uses for result in op.results):
            op.detach()
            op.erase()
    values = evaluate_compute(copy, {})
    copy.erase()
    # What does not depend on a dimension is broadcast along it.
    dims = [d for d, stride in enumerate(values.strides) if stride != 0 and values.shape[d] > 1]
    return np.ascontiguousarray(values[tuple(slice(None) if d in dims else 0 for d in range(values.ndim))]), dims
