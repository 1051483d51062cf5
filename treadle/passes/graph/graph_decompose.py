"""graph-decompose: operators whose definition no template schedules become simpler ones."""

from __future__ import annotations

from collections.abc import Sequence
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
    ConvOp,
    ConvTransposeOp,
    LayerNormOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    RmsNormOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    definition,
)
from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import accumulator, is_float, numpy_dtype
from treadle.dialects.graph.evaluate import evaluate_compute
from treadle.dialects.graph.extents import enclosing_function, extents_of
from treadle.passes.graph.layout.channels_last import has_no_overlap
from treadle.passes.graph.one_kernel import is_one_kernel
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, replace, shape_of

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


# The pattern that writes a transposed convolution as a convolution and a shuffle of its pixels.


class DecomposeConvTranspose(RewritePattern):
    """A transposed convolution by constant weights as one convolution for all s positions that a pixel of the result
    may have within a stride, as channels, whose pixels are then put side by side.

    With o + p = s * q + r, the sum over taps of `x[i] * w[t]`, where `i * s + t - p = o`, is that over j of
    `x[q - j] * w[s * j + r]`: a convolution of `ceil(k / s)` taps at q, whose weights depend on r. Taps beyond k are 0.
    Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.
    """

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvTransposeOp, rewriter: PatternRewriter) -> None:
        weights, main = constant_of(op.w), enclosing_function(op)
        names = ("strides", "pads", "dilations")
        strides, pads, dilations = (int_list(op.properties, name) for name in names)
        if weights is None or not is_float(op.type.get_element_type()) or has_no_overlap(op):
            return
        if op.groups.value.data > 1 or set(dilations) != {1} or (main is not None and extents_of(main)):
            return
        (n, _, *source), (_, outputs, *kernel), rank = shape_of(op.x), shape_of(op.w), len(strides)
        before, extents = pads[:rank], op.shape[2:]
        taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
        first = [p // s for p, s in zip(before, strides, strict=True)]
        last = [(e - 1 + p) // s for e, p, s in zip(extents, before, strides, strict=True)]
        borders = [
            *(t - 1 - q for t, q in zip(taps, first, strict=True)),
            *(q + 1 - x for q, x in zip(last, source, strict=True)),
        ]
        if DYNAMIC_INDEX in op.shape or min(borders) < 0:
            return
        conv = ConvOp(
            op.x, (w := constant_op(_phases(weights, strides, taps))).result, [1] * rank, borders, [1] * rank, 1
        )
        lengths = [q1 - q0 + 1 for q0, q1 in zip(first, last, strict=True)]
        apart = ReshapeOp(conv.result, [n, outputs, *strides, *lengths])
        pairs = [axis for d in range(rank) for axis in (2 + rank + d, 2 + d)]
        shuffled = TransposeOp(apart.result, [0, 1, *pairs])
        whole = [q * s for q, s in zip(lengths, strides, strict=True)]
        image = ReshapeOp(shuffled.result, [n, outputs, *whole])
        starts = [p % s for p, s in zip(before, strides, strict=True)]
        cut = SliceOp(image.result, [0, 0, *starts], [n, outputs, *extents], [1] * (2 + rank))
        replace(rewriter, op, [w, conv, apart, shuffled, image, cut])


def _phases(weights: Array, strides: Sequence[int], taps: Sequence[int]) -> Array:
    """Weights `[IC, OC, kernel...]` as those of all positions within a stride, `[OC * strides..., IC, taps...]`, the
    last tap first."""
    channels, outputs, *kernel = weights.shape
    rank = len(strides)
    missing = [(0, t * s - k) for t, s, k in zip(taps, strides, kernel, strict=True)]
    padded = np.pad(weights, [(0, 0), (0, 0), *missing])
    apart = padded.reshape(channels, outputs, *(e for pair in zip(taps, strides, strict=True) for e in pair))
    flipped = np.flip(apart, axis=tuple(range(2, 2 + 2 * rank, 2)))
    order = [1, *range(3, 3 + 2 * rank, 2), 0, *range(2, 2 + 2 * rank, 2)]
    return np.ascontiguousarray(flipped.transpose(order)).reshape(outputs * prod(strides), channels, *taps)


@dataclass(frozen=True)
class GraphDecomposePass(ModulePass):
    """Writes the reduction "mean", padded average pooling, transposed convolutions, and softmax, layer_norm and
    rms_norm as simpler operators.

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
    from a constant, instead of counting them. A transposed convolution of one group by constant weights becomes a
    convolution whose channels are pixels that lie side by side; not in models of ranges.
    """

    name = "graph-decompose"
    rows: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns: list[RewritePattern] = [
            Widen(self.rows), DecomposeSoftmax(self.rows), DecomposeLayerNorm(self.rows), DecomposeRmsNorm(self.rows),
            DecomposeMean(), HoistWindowCount(), DecomposeConvTranspose(),
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
