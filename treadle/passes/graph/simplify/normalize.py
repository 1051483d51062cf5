"""Scales and biases after a convolution or a matmul: into the weights, and into one addition.

Standard inference folding (Jacob et al., "Quantization and Training of Neural Networks", CVPR 2018, section
3.2). The combined weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BatchNormOp, BinaryOp, ConvOp, ConvTransposeOp, MatmulOp
from treadle.dialects.graph.dtypes import smallest_normal
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, insert_constant, replace, shape_of

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
