"""Quantisation, products of bytes, and products of what was dequantised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.draw import Draw, Dtype, Recipes
from tests.fuzz.recipes.products import filters, positions, side
from tests.fuzz.values import INTEGERS

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_FLOAT = np.dtype(np.float32)
_PER_AXIS = 13
"""From which opset on a scale may be one of an axis."""
_HALVES = (0.25, 0.5, 1.0, 2.0)
"""Scales that make ties."""
_FAR = (1e-40, 1e-30, 1e-5, 1e4, 1e30, 3e38)


def _scale(d: Draw, dtype: Dtype = _FLOAT, shape: Sequence[int] = ()) -> str:
    """Positive scales, known or not: most as of a model, some that make ties, saturate or vanish."""
    shape = tuple(shape)
    values = d.rng.uniform(0.002, 0.2, shape)
    if d.chance(0.3):
        values = d.rng.choice(_HALVES, shape)
    elif d.chance(0.1):
        values = np.minimum(d.rng.choice(_FAR, shape), float(np.finfo(dtype).max))
    array = np.asarray(values).astype(dtype)
    array = np.asarray(np.maximum(array, np.finfo(dtype).smallest_subnormal))
    return d.constant(array) if d.chance(0.8) else d.input(array)


def _zero(d: Draw, dtype: Dtype, shape: Sequence[int] = ()) -> str:
    """Zero points: the middle of the type, its ends, or any."""
    ends, shape = np.iinfo(dtype), tuple(shape)
    middle = (int(ends.max) + int(ends.min) + 1) // 2
    array = d.rng.integers(ends.min, int(ends.max) + 1, shape) if d.chance(0.3) else np.full(shape, 0)
    if d.chance(0.6):
        array = d.rng.choice((middle, middle, ends.min, ends.max), shape)
    array = np.asarray(array).astype(dtype)
    return d.constant(array) if d.chance(0.8) else d.input(array)


def _bytes(d: Draw, dtype: Dtype, shape: Sequence[int], constant: float = 0.4) -> str:
    """Bytes of the whole type, or of its ends."""
    ends = np.iinfo(dtype)
    array = d.rng.integers(ends.min, int(ends.max) + 1, tuple(shape))
    if d.chance(0.15):
        array = d.rng.choice((ends.min, ends.max), tuple(shape))
    return (d.constant if d.chance(constant) else d.input)(np.asarray(array).astype(dtype))


def _quantized(d: Draw, ranks: Sequence[int], least: int = 0) -> str:
    """Bytes: those that there are, or new ones."""
    found = [n for n, a in d.values.items() if a.dtype in _BYTES and a.ndim in ranks and min(a.shape) >= least]
    if found and d.chance(0.6):
        return d.choice(found)
    return _bytes(d, d.choice(_BYTES), d.shape(ranks, least), 0.1)


def _axis(d: Draw, shape: Sequence[int]) -> tuple[Sequence[int], dict[str, Any]]:
    """The shape of a scale, and the attribute that says of which axis it is."""
    if d.opset < _PER_AXIS or not shape or d.chance(0.6):
        return (), {}
    axis = d.between(-len(shape), len(shape) - 1)
    return (shape[axis],), {"axis": axis}


def _quantize(d: Draw, name: str | None = None) -> None:
    scales = [t for t in d.types("QuantizeLinear", 1) if t.kind == "f"]
    name = name or d.tensor(scales)
    x = d.array(name)
    shape, axis = _axis(d, x.shape)
    scale, types = _scale(d, x.dtype, shape), d.types("QuantizeLinear", 2)
    dtype = d.choice([*types, *[t for t in types if t in _BYTES] * 2])
    d.node("QuantizeLinear", [name, scale, *([_zero(d, dtype, shape)] if d.chance(0.8) else [])], **axis)


def _dequantize(d: Draw) -> None:
    if d.chance(0.75):
        _dequantized_product(d)
        return
    name = d.tensor([t for t in INTEGERS if t in d.types("DequantizeLinear")])
    x = d.array(name)
    shape, axis = _axis(d, x.shape)
    dtype = d.preferred([t for t in d.types("DequantizeLinear", 1) if t.kind == "f"])
    has_zero = x.dtype != np.int32 and d.chance(0.7)
    zero = [_zero(d, x.dtype, shape)] if has_zero else []
    d.node("DequantizeLinear", [name, _scale(d, dtype, shape), *zero], **axis)


def _dequantized(d: Draw, name: str, axis: int | None = None) -> str:
    """The name of what bytes were quantised from, with a scale of all or of an axis."""
    x = d.array(name)
    along = axis is not None and d.opset >= _PER_AXIS and d.chance(0.6)
    shape = (x.shape[axis],) if axis is not None and along else ()
    zero = [_zero(d, x.dtype, shape)] if d.chance(0.7) else []
    d.node("DequantizeLinear", [name, _scale(d, _FLOAT, shape), *zero], **({"axis": axis} if along else {}))
    return d.nodes[-1].output[0]


def _dequantized_product(d: Draw) -> None:
    """A product of what was dequantised, most often by constants, with what a model has behind it."""
    operator = d.choice(("MatMul", "MatMul", "Gemm", "Conv", "Conv"))
    ranks = {"MatMul": (2, 2, 3, 4), "Gemm": (2,), "Conv": (3, 4, 4)}[operator]
    name = _quantized(d, ranks, int(operator == "Conv"))
    shape = d.array(name).shape
    across = d.between(0, 1) if operator == "Gemm" else 0
    weights = filters(d, shape) if operator == "Conv" else (shape[-1], side(d))
    weights = weights[::-1] if across else weights
    attributes = positions(d, shape, weights) if operator == "Conv" else {"transB": across or None}
    outputs = 0 if operator == "Conv" or across else 1
    of_weights = d.choice((outputs, outputs, outputs, 1 - outputs))
    operands = [_dequantized(d, name), _dequantized(d, _bytes(d, d.choice(_BYTES), weights, 0.8), of_weights)]
    if operator != "MatMul" and d.chance(0.5):
        operands.append(d.of(_FLOAT, (weights[outputs],)))
    d.node(operator, operands, **attributes)
    if d.chance(0.3):
        d.node("Relu", [d.nodes[-1].output[0]])
    if d.chance(0.6):
        _quantize(d, d.nodes[-1].output[0])


def _matrices(d: Draw) -> tuple[str, str]:
    first = _quantized(d, (2, 2, 2, 3, 4))
    shape = d.array(first).shape
    batch = d.partner(shape[:-2]) if d.chance(0.5) else ()
    return first, _bytes(d, d.choice(_BYTES), (*batch, shape[-1], side(d)), 0.6)


def _of_rows_or_columns(d: Draw, extent: int) -> Sequence[int]:
    return (extent,) if d.chance(0.2) else ()


def _matmul_integer(d: Draw) -> None:
    first, second = _matrices(d)
    a, b = d.array(first), d.array(second)
    rows = _of_rows_or_columns(d, a.shape[-2]) if a.ndim == 2 else ()
    zeros = [_zero(d, a.dtype, rows), _zero(d, b.dtype, _of_rows_or_columns(d, b.shape[-1]))]
    zeros[0] = "" if d.chance(0.2) else zeros[0]
    d.node("MatMulInteger", [first, second, *zeros[: d.choice((0, 1, 2, 2, 2)) if zeros[0] else 2]])


def _linear_matmul(d: Draw) -> None:
    first, second = _matrices(d)
    a, b = d.array(first), d.array(second)
    rows = _of_rows_or_columns(d, a.shape[-2]) if a.ndim == 2 else ()
    columns = _of_rows_or_columns(d, b.shape[-1])
    left = [first, _scale(d, _FLOAT, rows), _zero(d, a.dtype, rows)]
    right = [second, _scale(d, _FLOAT, columns), _zero(d, b.dtype, columns)]
    d.node("QLinearMatMul", [*left, *right, _scale(d), _zero(d, d.choice(_BYTES))])


def _images(d: Draw) -> tuple[str, str, dict[str, Any]]:
    image = _quantized(d, (3, 4, 4), 1)
    shape = d.array(image).shape
    weights = filters(d, shape)
    return image, _bytes(d, d.choice(_BYTES), weights, 0.8), positions(d, shape, weights)


def _conv_integer(d: Draw) -> None:
    image, weights, attributes = _images(d)
    w = d.array(weights)
    zeros = [_zero(d, d.array(image).dtype), _zero(d, w.dtype, _of_rows_or_columns(d, w.shape[0]))]
    d.node("ConvInteger", [image, weights, *zeros[: d.choice((0, 1, 2, 2))]], **attributes)


def _linear_conv(d: Draw) -> None:
    image, weights, attributes = _images(d)
    w = d.array(weights)
    outputs = _of_rows_or_columns(d, w.shape[0])
    left = [image, _scale(d), _zero(d, d.array(image).dtype)]
    right = [weights, _scale(d, _FLOAT, outputs), _zero(d, w.dtype, outputs)]
    bias = [d.constant(d.rng.integers(-5000, 5000, w.shape[0]).astype(np.int32))] if d.chance(0.5) else []
    d.node("QLinearConv", [*left, *right, _scale(d), _zero(d, d.choice(_BYTES)), *bias], **attributes)


QUANTIZED: Recipes = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda d: d.node_of(3, "DynamicQuantizeLinear", [d.tensor([_FLOAT], least=1)]),
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _linear_matmul,
    "QLinearConv": _linear_conv,
}

__all__ = ["QUANTIZED"]
