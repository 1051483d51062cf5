"""Operators on quantised numbers that are defined here; see `own_definitions.py`.

Quotients and factors are those of float32, as `docs/numerics.md` says; what lies at a tie between two quanta is left to
the rounding of the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.own_definitions import EXACTLY, Array, Attributes, Own, Round, cast
from tests.fuzz.own_windows import convolved


def _spread(parameter: Any, x: Array, axis: int) -> Any:
    """A scale or zero point of all elements, or of each slice along the axis. ValueError if it is of another extent."""
    if parameter.shape in ((), (1,)):
        return parameter.reshape(())
    if parameter.shape != (x.shape[axis],):
        raise ValueError("another extent")
    return parameter.reshape(-1, *[1] * (x.ndim - axis % x.ndim - 1))


def _given(x: list[Any], position: int) -> Any:
    return x[position] if len(x) > position else None


def _floats(scale: Any) -> Any:
    """The type of steps: float32, or float64 where the evaluation is in that."""
    return np.float64 if scale.dtype == np.float64 else np.float32


def _rounded(quotient: Array, zero: Any, dtype: np.dtype[Any]) -> Array:
    return cast(np.asarray(np.rint(quotient) + zero.astype(quotient.dtype)), dtype)


def _quantize(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    zero = _given(x, 2)
    number = int(attributes.get("output_dtype", 0))
    dtype = zero.dtype if zero is not None else np.dtype(helper.tensor_dtype_to_np_dtype(number or 2))
    axis, steps = int(attributes.get("axis", 1)), _floats(x[1])
    quotient = np.asarray(x[0].astype(steps) / _spread(x[1].astype(steps), x[0], axis))
    return [_rounded(quotient, np.zeros(()) if zero is None else _spread(zero, x[0], axis), dtype)]


def dequantized_factors(attributes: Attributes, x: list[Any]) -> list[Array]:
    """The numbers less their zero points, and their scales, whose product the operator is."""
    axis, steps, zero = int(attributes.get("axis", 1)), _floats(x[1]), _given(x, 2)
    number = x[0].astype(np.int64) - (0 if zero is None else _spread(zero, x[0], axis).astype(np.int64))
    return [number.astype(steps), _spread(x[1].astype(steps), x[0], axis)]


def _dequantize(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    number, scale = dequantized_factors(attributes, x)
    return [np.asarray(number * scale).astype(x[1].dtype)]


def _dynamic(_: int, __: Attributes, x: list[Any], r: Round) -> list[Array]:
    """ONNX's function: the range has 0 in it, and what is 0 everywhere has a scale of 0."""
    steps, t = r.at_least(np.float32), x[0].dtype.type
    low, high = np.minimum(x[0].min(), t(0)), np.maximum(x[0].max(), t(0))
    scale = np.asarray(steps(steps(high - low) / t(255)))
    zero = cast(np.asarray(np.rint(np.clip(steps(-low / scale), 0, 255))), np.dtype(np.uint8))
    return [_rounded(np.asarray(steps(x[0] / scale)), zero, zero.dtype), scale, zero]


def _centred(x: Array, zero: Any) -> Array:
    return x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))


def _of_rows(parameter: Any) -> Any:
    return parameter.reshape(-1, 1) if parameter is not None and parameter.ndim == 1 else parameter


def _matmul(_: int, __: Attributes, x: list[Any], r: Round) -> list[Array]:
    total = np.matmul(_centred(x[0], _of_rows(_given(x, 2))), _centred(x[1], _given(x, 3)))
    return [total.astype(np.int32)]


def _of_outputs(parameter: Any, inner: int) -> Any:
    """One number, or one for each output channel, before so many dimensions."""
    return parameter.reshape(() if parameter.shape in ((), (1,)) else (-1, *[1] * inner))


def _conv(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    """Borders are zero points."""
    image, weights, of_image, of_weights = (_given(x, n) for n in range(4))
    of_image = None if of_image is None else of_image.reshape(())
    of_weights = None if of_weights is None else _of_outputs(of_weights, weights.ndim - 1)
    sums = convolved(opset, attributes, [_centred(image, of_image), _centred(weights, of_weights)], EXACTLY)[0]
    return [sums.astype(np.int32)]


def _requantized(total: Array, scales: list[Any], zero: Any, r: Round) -> list[Array]:
    steps, type_ = r.at_least(np.float32), _floats(scales[0])
    first, second, last = (scale.astype(type_) for scale in scales)
    factor = steps(steps(first * second) / last)
    return [_rounded(np.asarray(steps(total.astype(type_) * factor)), zero, zero.dtype)]


def _linear_matmul(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    total = _matmul(opset, attributes, [x[0], x[3], x[2], x[5]], r)[0]
    return _requantized(total, [_of_rows(x[1]), x[4], x[6]], x[7], r)


def _linear_conv(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    total, inner = _conv(opset, attributes, [x[0], x[3], x[2], x[5]], r)[0], x[0].ndim - 2
    bias = _given(x, 8)
    total = total if bias is None else total + bias.reshape(-1, *[1] * inner)
    return _requantized(total, [x[1].reshape(()), _of_outputs(x[4], inner), x[6].reshape(())], x[7], r)


OWN_QUANTIZED: Mapping[str, Own] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul,
    "ConvInteger": _conv,
    "QLinearMatMul": _linear_matmul,
    "QLinearConv": _linear_conv,
}

__all__ = ["OWN_QUANTIZED", "dequantized_factors"]
