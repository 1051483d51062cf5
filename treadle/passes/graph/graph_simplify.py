"""graph-simplify: what can be left out, merged, or folded into weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from treadle.dialects.graph import (
    BatchNormOp,
    BinaryOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    MatmulOp,
    PadOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
    WhereOp,
)
from treadle.dialects.graph.definition import Operator, int_list
from treadle.dialects.graph.dtypes import is_float_dtype, represents, smallest_normal
from treadle.passes.graph.rewriting import (
    Array,
    constant_of,
    constant_op,
    insert_constant,
    is_uniform,
    replace,
    shape_of,
    tensor,
)

# Elementwise operators that are one of their operands, or that a cheaper operator computes exactly.

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
            constant = constant_of(other.owner.x if isinstance(other.owner, BroadcastOp) else other)
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


# Scales and biases after a convolution or a matmul: into the weights, and into one addition.
#
# Standard inference folding (Jacob et al., "Quantization and Training of Neural Networks", CVPR 2018, section
# 3.2). The combined weights are computed in float64 and rounded once.

Linear = ConvOp | ConvTransposeOp | MatmulOp


class BatchNormAsScale(RewritePattern):
    """`batch_norm(x)` of constant parameters is `x * s + b` per channel, if `s` and `b` are finite in the element
    type, and `s` is not subnormal."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BatchNormOp, rewriter: PatternRewriter) -> None:
        parameters = [constant_of(v) for v in (op.scale, op.bias, op.mean, op.variance)]
        known = [p.astype(np.float64) for p in parameters if p is not None]
        if len(known) != len(parameters) or DYNAMIC_INDEX in op.shape:
            return
        scale, bias, mean, variance = known
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + op.epsilon.value.data)
            offset = bias - mean * factor
            rounded = [v.astype(parameters[0].dtype) for v in (factor, offset) if parameters[0] is not None]
        if not all(np.isfinite(v).all() for v in rounded) or not _keep_digits(rounded[0], scale != 0, ()):
            return
        shape = [-1, *[1] * (len(op.shape) - 2)]
        s, b = (constant_op(v.reshape(shape)) for v in rounded)
        scaled = BinaryOp("mul", op.x, s.result)
        replace(rewriter, op, [s, b, scaled, BinaryOp("add", scaled.result, b.result)])


class ScaleIntoWeights(RewritePattern):
    """`linear(x, w) * c` is `linear(x, w * c)` for a constant `c` per output channel, column or row."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        matched = _scaled(op)
        if matched is None:
            return
        value, factor = matched
        linear = value.owner
        if not isinstance(linear, Linear) or not value.has_one_use():
            return
        scaled = _scaled_weights(linear, factor)
        if scaled is None:
            return
        position, weights = scaled
        copy = linear.clone()
        copy.operands[position] = insert_constant(rewriter, linear, weights)
        replace(rewriter, op, copy)


class ScaleThroughBias(RewritePattern):
    """`(linear + b) * c` is `linear * c + b * c`, if the weights take the scale."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        matched = _scaled(op)
        if matched is None or not isinstance(matched[0].owner, BinaryOp):
            return
        value, factor = matched
        biased = _biased(matched[0].owner)
        if biased is None or not value.has_one_use() or not biased[0].has_one_use():
            return
        linear, bias = biased[0].owner, biased[1]
        if not isinstance(linear, Linear) or _scaled_weights(linear, factor) is None:
            return
        dtype = bias.dtype
        scale = constant_op(factor.astype(dtype))
        offset = constant_op(_scaled_by(bias, factor))
        scaled = BinaryOp("mul", linear.result, scale.result)
        replace(rewriter, op, [scale, offset, scaled, BinaryOp("add", scaled.result, offset.result)])


class BiasOfBias(RewritePattern):
    """`(linear + a) + b` is `linear + (a + b)` for constants `a` and `b`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        outer = _biased(op)
        if outer is None or not isinstance(outer[0].owner, BinaryOp) or not outer[0].has_one_use():
            return
        inner = _biased(outer[0].owner)
        if inner is None or not isinstance(inner[0].owner, Linear) or shape_of(inner[0]) != op.shape:
            return
        a, b = inner[1], outer[1]
        if prod(np.broadcast_shapes(a.shape, b.shape)) > max(a.size, b.size):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            total = constant_op(_rounded(a.astype(np.float64) + b, a.dtype))
        replace(rewriter, op, [total, BinaryOp("add", inner[0], total.result)])


class SubtractionOfConstant(RewritePattern):
    """`linear - b` is `linear + (-b)` for a constant `b`, so that the other patterns see one kind of bias."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        constant = constant_of(op.rhs) if op.kind.data == "sub" else None
        if constant is None or constant.dtype.kind != "f" or not _is_linear_or_biased(op.lhs.owner):
            return
        negative = constant_op(np.asarray(-constant))
        replace(rewriter, op, [negative, BinaryOp("add", op.lhs, negative.result)])


def _is_linear_or_biased(owner: object) -> bool:
    if isinstance(owner, BinaryOp):
        biased = _biased(owner)
        return biased is not None and isinstance(biased[0].owner, Linear)
    return isinstance(owner, Linear)


def _operand_and_constant(op: BinaryOp) -> tuple[SSAValue, Array] | None:
    """The other operand and the constant, if one of a commutative operator is floats."""
    for value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        constant = constant_of(other)
        if constant is not None and constant.dtype.kind == "f" and shape_of(value) == op.shape:
            return value, constant
    return None


def _biased(op: Operation) -> tuple[SSAValue, Array] | None:
    """What an addition of a constant adds to, and the constant."""
    return _operand_and_constant(op) if isinstance(op, BinaryOp) and op.kind.data == "add" else None


def _scaled(op: BinaryOp) -> tuple[SSAValue, Array] | None:
    """What a multiplication by a constant (a division) scales, and the factor in float64."""
    if op.kind.data == "mul":
        matched = _operand_and_constant(op)
        return None if matched is None else (matched[0], matched[1].astype(np.float64))
    divisor = constant_of(op.rhs) if op.kind.data == "div" else None
    if divisor is None or divisor.dtype.kind != "f" or np.any(divisor == 0) or shape_of(op.lhs) != op.shape:
        return None
    with np.errstate(over="ignore"):
        return op.lhs, 1.0 / divisor.astype(np.float64)


def _scaled_weights(linear: Linear, factor: Array) -> tuple[int, Array] | None:
    """Which operand takes the factor, and its new value; None if none can."""
    aligned = factor.reshape([1] * (len(linear.shape) - factor.ndim) + list(factor.shape))
    varying = [d for d, extent in enumerate(aligned.shape) if extent != 1]
    if isinstance(linear, MatmulOp):
        return _scaled_matrix(linear, aligned, varying)
    weights = constant_of(linear.w)
    if weights is None or any(d != 1 for d in varying):
        return None
    if isinstance(linear, ConvTransposeOp):
        return _scaled_transposed(linear, weights, aligned)
    return _checked(1, weights, aligned.reshape([-1, *[1] * (weights.ndim - 1)]))


def _scaled_transposed(linear: ConvTransposeOp, weights: Array, factor: Array) -> tuple[int, Array] | None:
    """Weights are [C, OC/groups, ...]: a channel of the result is a column only if there is one group."""
    if linear.groups.value.data != 1 and factor.size != 1:
        return None
    return _checked(1, weights, factor.reshape([1, -1, *[1] * (weights.ndim - 2)]))


def _scaled_matrix(linear: MatmulOp, factor: Array, varying: list[int]) -> tuple[int, Array] | None:
    if linear.sums is not None:
        return None
    rank = len(linear.shape)
    a, b = constant_of(linear.a), constant_of(linear.b)
    if b is not None and varying in ([], [rank - 1]):
        return _checked(1, b, factor.reshape(1, -1))
    if a is not None and varying in ([], [rank - 2]):
        return _checked(0, a, factor.reshape(-1, 1))
    return None


def _checked(position: int, weights: Array, factor: Array) -> tuple[int, Array] | None:
    """The product in the weights' type, unless it overflows, or all weights of one factor become subnormal."""
    aligned = factor.reshape([1] * (weights.ndim - factor.ndim) + list(factor.shape))
    scaled = _scaled_by(weights, aligned)
    along = tuple(d for d, extent in enumerate(aligned.shape) if extent == 1)
    if not np.all(np.isfinite(scaled)) or not _keep_digits(scaled, (weights != 0) & (aligned != 0), along):
        return None
    return position, scaled


def _keep_digits(values: Array, are_numbers: Array, along: tuple[int, ...]) -> bool:
    """Whether the largest of the values along dimensions is a normal number, where they are not all zeros.

    Smaller ones may then be subnormal, or 0: their errors are within the rounding of the largest.
    """
    largest = np.max(np.abs(values).astype(np.float64), axis=along, initial=0)
    return bool(np.all((largest >= smallest_normal(values.dtype)) | ~np.any(are_numbers, axis=along)))


def _scaled_by(values: Array, factor: Array) -> Array:
    """The product in the type of the values, infinite where that type ends."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _rounded(values.astype(np.float64) * factor, values.dtype)


def _rounded(values: Array, dtype: np.dtype[np.generic]) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype)


NORMALIZE: tuple[type[RewritePattern], ...] = (
    BatchNormAsScale, ScaleIntoWeights, ScaleThroughBias, SubtractionOfConstant, BiasOfBias,
)  # fmt: skip
"""This file's patterns."""


# Operators that move elements: chains that are equal to one operator, and operators that move nothing.


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


class LastOfSeveral(RewritePattern):
    """Only the last of several reshapes, or broadcasts, counts."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, ReshapeOp | BroadcastOp) or -1 in op.shape:
            return
        if isinstance(inner := op.x.owner, ReshapeOp | BroadcastOp) and type(inner) is type(op):
            replace(rewriter, op, type(op)(inner.x, op.shape))


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
    MovesNothing, LastOfSeveral, TransposeOfTranspose, TransposeOfUnits, SliceOfSlice,
    GatherOfConstant, ReductionOfUnits,
)  # fmt: skip
"""This file's patterns."""


@dataclass(frozen=True)
class GraphSimplifyPass(ModulePass):
    """Applies the patterns of this file until none fits, and removes dead operators.

    ```mlir
    %c = graph.conv %x, %w {...} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
    %n = graph.batch_norm %c, %scale, %bias, %mean, %variance {epsilon = 1.0e-05 : f64} : (...)
    %y = graph.reshape %n {shape = array<i64: 1, 4, 6, 6>} : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
    ```
    becomes, if all but `%x` is constant,
    ```mlir
    %c = graph.conv %x, %w_scaled {...} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
    %y = graph.binary "add" %c, %b : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
    ```
    Rewrites are exact, except that scales and biases after a convolution or a matmul are combined with its
    weights, which rounds them once more, that `x ** 3` rounds twice, and that `x + 0` forgets the sign of a
    zero.
    """

    name = "graph-simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns = [pattern() for pattern in (*ARITHMETIC, *SHAPES, *NORMALIZE)]
        PatternRewriteWalker(GreedyRewritePatternApplier(patterns)).rewrite_module(op)
