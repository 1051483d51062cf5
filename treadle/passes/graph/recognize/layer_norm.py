"""Layer normalisation and root-mean-square normalisation, as exporters write them out.

First the quotient is matched, as a norm with scale 1 and bias 0; then a product and a sum that follow become its scale
and bias. So a few small patterns cover every exporter's order of the operators.
"""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, BroadcastOp, LayerNormOp, ReshapeOp, RmsNormOp
from treadle.dialects.graph.dtypes import is_float, numpy_dtype
from treadle.passes.graph.recognize.matching import (
    binary,
    divided_by_root,
    either,
    inverse_root,
    row_mean,
    same_value,
    scalar_of,
)
from treadle.passes.graph.rewriting import constant_of, constant_op, is_uniform, replace, shape_of, tensor


class WrittenLayerNorm(RewritePattern):
    """`(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon)` is a `layer_norm` with scale 1 and bias -0: `x + 0.0`
    is not `x` where that is -0."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        if not is_float(op.type.get_element_type()):
            return
        for deviation, spread in divided_by_root(op.result):
            variance = _plus_epsilon(spread)
            centred = _centred(deviation)
            if variance is None or centred is None or _variance_of(variance[0]) != centred:
                continue
            x, dim = centred
            one, zero = _uniform(x, dim, 1.0), _uniform(x, dim, -0.0)
            replace(rewriter, op, [one, zero, LayerNormOp(x, one.result, zero.result, dim, variance[1])])
            return


class WrittenAsScaleAndShift(RewritePattern):
    """`x * s + (bias - mean(x) * s)` with `s = scale / sqrt(variance + epsilon)` is a `layer_norm`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for product, rest in either(op.result, "add"):
            shift = binary(rest, "sub")
            if shift is None:
                continue
            for x, factor in either(product, "mul"):
                found = self._matched(x, factor, shift[1])
                if found is not None and self._rewrite(op, x, shift[0], found, rewriter):
                    return

    def _matched(self, x: SSAValue, factor: SSAValue, shift: SSAValue) -> tuple[SSAValue, int, float] | None:
        """The scale, the first normalised dimension and epsilon."""
        means = [mean for mean, other in either(shift, "mul") if other is factor]
        averaged = row_mean(means[0]) if means else None
        if averaged is None or not same_value(averaged[0], x):
            return None
        for inverse, scale in either(factor, "mul"):
            spread = inverse_root(inverse)
            variance = None if spread is None else _plus_epsilon(spread)
            if variance is not None and _variance_of(variance[0]) == averaged:
                return scale, averaged[1], variance[1]
        return None

    def _rewrite(
        self, op: BinaryOp, x: SSAValue, bias: SSAValue, found: tuple[SSAValue, int, float], rewriter: PatternRewriter
    ) -> bool:
        scale, dim, epsilon = found
        rows, shifts = _as_rows(scale, x, dim), _as_rows(bias, x, dim)
        if rows is None or shifts is None or op.shape != shape_of(x):
            return False
        norm = LayerNormOp(x, _result(rows, scale), _result(shifts, bias), dim, epsilon)
        replace(rewriter, op, [*rows, *shifts, norm])
        return True


class WrittenRmsNorm(RewritePattern):
    """`x / sqrt(mean(x ** 2) + epsilon)` is an `rms_norm` with scale 1."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        if not is_float(op.type.get_element_type()):
            return
        for x, spread in divided_by_root(op.result):
            mean = _plus_epsilon(spread)
            averaged = None if mean is None else row_mean(mean[0])
            if mean is None or averaged is None or not _is_square_of(averaged[0], x) or shape_of(x) != op.shape:
                continue
            one = _uniform(x, averaged[1], 1.0)
            replace(rewriter, op, [one, RmsNormOp(x, one.result, averaged[1], mean[1])])
            return


class ScaleOfNorm(RewritePattern):
    """A product after a norm whose scale is 1, and whose bias is 0, becomes its scale."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for normal, scale in either(op.result, "mul"):
            norm = normal.owner
            if not isinstance(norm, LayerNormOp | RmsNormOp) or not _is_plain(norm) or not normal.has_one_use():
                continue
            dim = norm.dim.value.data
            rows = _as_rows(scale, norm.x, dim)
            if rows is None or op.shape != norm.shape:
                continue
            value, epsilon = _result(rows, scale), norm.epsilon.value.data
            if isinstance(norm, LayerNormOp):
                scaled: Operation = LayerNormOp(norm.x, value, norm.bias, dim, epsilon)
            else:
                scaled = RmsNormOp(norm.x, value, dim, epsilon)
            replace(rewriter, op, [*rows, scaled])
            return


class BiasOfNorm(RewritePattern):
    """A sum after a `layer_norm` whose bias is 0 becomes its bias."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for normal, bias in either(op.result, "add"):
            norm = normal.owner
            if not isinstance(norm, LayerNormOp) or not _holds(norm.bias, 0.0) or not normal.has_one_use():
                continue
            dim = norm.dim.value.data
            rows = _as_rows(bias, norm.x, dim)
            if rows is None or op.shape != norm.shape:
                continue
            shifted = LayerNormOp(norm.x, norm.scale, _result(rows, bias), dim, norm.epsilon.value.data)
            replace(rewriter, op, [*rows, shifted])
            return


def _centred(value: SSAValue) -> tuple[SSAValue, int] | None:
    """(x, dim) where a value is `x - mean(x)` over the dimensions from `dim` on."""
    difference = binary(value, "sub")
    averaged = None if difference is None else row_mean(difference[1])
    if difference is None or averaged is None:
        return None
    return averaged if same_value(averaged[0], difference[0]) else None


def _variance_of(value: SSAValue) -> tuple[SSAValue, int] | None:
    """(x, dim) where a value is the variance of x over the dimensions from `dim` on."""
    averaged = row_mean(value)
    if averaged is None:
        return None
    squared, dim = averaged
    power = binary(squared, "pow")
    pair = binary(squared, "mul")
    if power is not None and scalar_of(power[1]) == 2.0:
        pair = power[0], power[0]
    centred = [] if pair is None else [_centred(side) for side in pair]
    if len(centred) != 2 or centred[0] is None or centred[0] != centred[1] or centred[0][1] != dim:
        return None
    return centred[0]


def _is_square_of(value: SSAValue, x: SSAValue) -> bool:
    power, pair = binary(value, "pow"), binary(value, "mul")
    if power is not None:
        return power[0] is x and scalar_of(power[1]) == 2.0
    return pair is not None and pair[0] is x and pair[1] is x


def _plus_epsilon(value: SSAValue) -> tuple[SSAValue, float] | None:
    """What a small positive constant is added to, and the constant."""
    for other, constant in either(value, "add"):
        epsilon = scalar_of(constant)
        if epsilon is not None and epsilon > 0 and shape_of(other) == shape_of(value):
            return other, epsilon
    return None


def _as_rows(value: SSAValue, x: SSAValue, dim: int) -> list[Operation] | None:
    """The operations that bring a scale or bias to the shape of the normalised dimensions; None if it varies
    elsewhere or would not broadcast."""
    rows, shape = shape_of(x)[dim:], shape_of(value)
    aligned = [1] * (len(shape_of(x)) - len(shape)) + list(shape)
    if len(aligned) > len(shape_of(x)) or any(e != 1 for e in aligned[:dim]):
        return None
    if any(e not in (1, extent) for e, extent in zip(aligned[dim:], rows, strict=True)):
        return None
    if shape == rows:
        return []
    constant = constant_of(value)
    if constant is not None:
        return [constant_op(np.ascontiguousarray(np.broadcast_to(constant.reshape(aligned[dim:]), rows)))]
    flat = ReshapeOp(value, aligned[dim:])
    return [flat] if prod(aligned) == prod(rows) else [flat, BroadcastOp(flat.result, rows)]


def _result(operations: list[Operation], value: SSAValue) -> SSAValue:
    return operations[-1].results[0] if operations else value


def _uniform(x: SSAValue, dim: int, number: float):
    type: TensorType = tensor(x)
    return constant_op(np.full(type.get_shape()[dim:], number, numpy_dtype(type.get_element_type())))


def _is_plain(norm: LayerNormOp | RmsNormOp) -> bool:
    return _holds(norm.scale, 1.0) and (isinstance(norm, RmsNormOp) or _holds(norm.bias, 0.0))


def _holds(value: SSAValue, number: float) -> bool:
    constant = constant_of(value)
    return constant is not None and is_uniform(constant, number)


NORMS: tuple[type[RewritePattern], ...] = (
    WrittenLayerNorm, WrittenAsScaleAndShift, WrittenRmsNorm, ScaleOfNorm, BiasOfNorm,
)  # fmt: skip
"""This file's patterns."""
