"""Layer normalisation and root-mean-square normalisation, as exporters write them out.

First the quotient is matched, as a norm with scale 1 and bias 0; then a product and a sum that follow become its scale
and bias. So a few small patterns cover every exporter's order of the operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from treadle.dialects.graph import BinaryOp, BroadcastOp, LayerNormOp, ReshapeOp, RmsNormOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.passes.graph.recognize.patterns import (
    Applied,
    Capture,
    Match,
    Number,
    Pattern,
    inverse_root,
    mean,
    root,
    square,
)
from treadle.passes.graph.rewriting import constant_of, constant_op, replace, shape_of, tensor


def _over_root(x: Pattern, y: Pattern) -> Pattern:
    return x / root(y) | x * inverse_root(y)


_X, _SCALE, _BIAS, _EPSILON = Capture("x"), Capture("scale"), Capture("bias"), Number("epsilon")
_MEAN = mean(_X, like="x")
_CENTRED = _X - _MEAN
_SPREAD = mean(square(_CENTRED), like="x") + _EPSILON
_LAYER_NORM = _over_root(_CENTRED, _SPREAD)
_RMS_NORM = _over_root(_X, mean(square(_X), like="x") + _EPSILON)
_FACTOR = Capture("factor", _SCALE * inverse_root(_SPREAD))
_SCALE_AND_SHIFT = _X * _FACTOR + (_BIAS - _MEAN * _FACTOR)


def _rows(pattern: Pattern, op: BinaryOp) -> Iterator[tuple[Match, int, float]]:
    """The ways in which an operator normalises rows, the first of the dimensions that are one, and epsilon."""
    for match in pattern.matches(op.result):
        shape, dims, epsilon = shape_of(match["x"]), match.dims or (), match.number("epsilon")
        are_last = dims == tuple(range(len(shape) - len(dims), len(shape))) and DYNAMIC_INDEX not in shape
        if dims and are_last and shape == op.shape and epsilon > 0:
            yield match, dims[0], epsilon


class WrittenLayerNorm(RewritePattern):
    """`(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon)` is a `layer_norm` with scale 1 and bias -0: `x + 0.0`
    is not `x` where that is -0."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for match, dim, epsilon in _rows(_LAYER_NORM, op):
            one, zero = (_uniform(match["x"], dim, number) for number in (1.0, -0.0))
            replace(rewriter, op, [one, zero, LayerNormOp(match["x"], one.result, zero.result, dim, epsilon)])
            return


class WrittenAsScaleAndShift(RewritePattern):
    """`x * s + (bias - mean(x) * s)` with `s = scale / sqrt(variance + epsilon)` is a `layer_norm`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for match, dim, epsilon in _rows(_SCALE_AND_SHIFT, op):
            x, scale, bias = (match[name] for name in ("x", "scale", "bias"))
            rows, shifts = _as_rows(scale, x, dim), _as_rows(bias, x, dim)
            if rows is not None and shifts is not None:
                norm = LayerNormOp(x, _result(rows, scale), _result(shifts, bias), dim, epsilon)
                replace(rewriter, op, [*rows, *shifts, norm])
                return


class WrittenRmsNorm(RewritePattern):
    """`x / sqrt(mean(x ** 2) + epsilon)` is an `rms_norm` with scale 1."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        for match, dim, epsilon in _rows(_RMS_NORM, op):
            one = _uniform(match["x"], dim, 1.0)
            replace(rewriter, op, [one, RmsNormOp(match["x"], one.result, dim, epsilon)])
            return


_PLAIN = Applied(LayerNormOp, (_X, Number(1), Number(0))) | Applied(RmsNormOp, (_X, Number(1)))
_SCALED = Capture("norm", _PLAIN) * Capture("parameter")
_SHIFTED = Capture("norm", Applied(LayerNormOp, (_X, _SCALE, Number(0)))) + Capture("parameter")


class ParameterOfNorm(RewritePattern):
    """A product after a norm whose scale is 1, and whose bias is 0, becomes its scale; a sum after a `layer_norm` whose
    bias is 0 becomes its bias."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BinaryOp, rewriter: PatternRewriter) -> None:
        position = 1 if op.kind.data == "mul" else 2
        for match in (_SCALED | _SHIFTED).matches(op.result):
            norm, parameter = match["norm"].owner, match["parameter"]
            if not isinstance(norm, LayerNormOp | RmsNormOp) or not norm.result.has_one_use():
                continue
            rows = _as_rows(parameter, norm.x, norm.dim.value.data)
            if rows is not None and op.shape == norm.shape:
                copy = norm.clone()
                copy.operands[position] = _result(rows, parameter)
                replace(rewriter, op, [*rows, copy])
                return


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


NORMS: tuple[type[RewritePattern], ...] = (WrittenLayerNorm, WrittenAsScaleAndShift, WrittenRmsNorm, ParameterOfNorm)
"""This file's patterns."""
