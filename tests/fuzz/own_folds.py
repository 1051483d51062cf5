"""Reductions and normalisations that are defined here; see `own_definitions.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.own_definitions import Array, Attributes, Own, Round, cast
from tests.fuzz.sums import Terms, finite, terms_of

Fold = Callable[["Array", "tuple[int, ...]", Round], Any]


def _sum(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """Sums of narrow floats run in wide ones, and are rounded once; those of integers wrap."""
    if x.dtype.kind != "f":
        return np.sum(x, axis=axes, keepdims=True, dtype=x.dtype)
    total = wide_sum(x, axes, r).astype(x.dtype)
    return r.total(total, lambda: terms_of(x, axes, prod(x.shape[a] for a in axes)))


def wide_sum(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """The sum in float64 along axes, which are kept. That of nothing but -0 is either zero: a sum may begin with 0 or
    with its first term."""
    total = np.sum(x, axis=axes, keepdims=True, dtype=np.float64, initial=0.0)
    if not np.signbit(x).any():
        return total
    of_negative_zeros = np.all((x == 0) & np.signbit(x), axis=axes, keepdims=True)
    return np.where(of_negative_zeros, r.zero(total), total)


def mean(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """The mean along axes, which are kept; that of integers is truncated."""
    count = prod(x.shape[a] for a in axes)
    if x.dtype.kind == "f":
        total = wide_sum(x, axes, r)
        result = (total / np.float64(count)).astype(x.dtype)
        return r.total(result, lambda: terms_of(x, axes, count), count)
    total = _sum(x, axes, r)
    return ((total - np.fmod(total, max(count, 1))) // max(count, 1)).astype(x.dtype)


def _log_sum_exp(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    largest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    return r(r(np.log(_sum(r(np.exp(r(x - shift))), axes, r))) + shift)


def largest(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """The maximum along axes, which are kept; of nothing it is the lowest that there is."""
    lowest = False if x.dtype.kind == "b" else -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return np.max(x, axis=axes, keepdims=True, initial=lowest)


def _smallest(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    highest = True if x.dtype.kind == "b" else np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return np.min(x, axis=axes, keepdims=True, initial=highest)


def _product(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    result = np.prod(x, axis=axes, keepdims=True, dtype=wide).astype(x.dtype)
    if x.dtype.kind != "f":
        return result
    largest = np.prod(np.maximum(finite(x), 1), axis=axes, keepdims=True)
    return r.product(result, largest, _least_product(x, axes))


def _least_product(x: Array, axes: tuple[int, ...]) -> Array:
    """The smallest magnitude of a product of some of the factors, those that are 0 left away; 1 where none is above 1:
    then a product that becomes 0 stays 0, in whatever order."""
    magnitudes = np.abs(x.astype(np.float64))
    least = np.prod(np.where(magnitudes > 0, np.minimum(magnitudes, 1), 1), axis=axes, keepdims=True)
    return np.where((magnitudes > 1).any(axis=axes, keepdims=True), least, 1)


def _carried(own: Own) -> Own:
    """The steps of an operator in the type that sums of its operands run in; only its result is of theirs."""

    def wide(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
        operands = [v.astype(np.float32) if v is not None and v.dtype == np.float16 else v for v in x]
        first, *others = own(opset, attributes, operands, r.at_least(np.float32))
        return [first.astype(x[0].dtype), *others]

    return wide


class _OfIntegers(Round):
    """The rounding of numbers that started as integers: up to 2^53 they are exact in float64, and so are all partial
    sums of terms that add up to no more."""

    def __init__(self, rounding: Round):
        self.rounding = rounding.at_least(np.float64)

    def __call__(self, x: Any) -> Any:
        return np.where(np.abs(x) > 2.0**53, self.rounding(x), x)

    def total(self, total: Any, terms: Callable[[], Terms], divisor: float = 1) -> Any:
        known = terms()
        return np.where(known.magnitude > 2.0**53, self.rounding.total(total, lambda: known, divisor), total)


def _in_floats(fold: Fold) -> Fold:
    """A fold with a function of floats in it: integers go through float64."""

    def wide(x: Array, axes: tuple[int, ...], r: Round) -> Any:
        if x.dtype.kind == "f":
            return fold(x, axes, r)
        return cast(np.asarray(fold(x.astype(np.float64), axes, _OfIntegers(r))), x.dtype)

    return wide


_FOLDS: Mapping[str, Fold] = {
    "ReduceSum": _sum,
    "ReduceMean": mean,
    "ReduceProd": _product,
    "ReduceMax": largest,
    "ReduceMin": _smallest,
    "ReduceL1": lambda x, axes, r: _sum(np.abs(x), axes, r),
    "ReduceL2": _in_floats(lambda x, axes, r: np.sqrt(r(_sum(r(x * x), axes, r))).astype(x.dtype)),
    "ReduceSumSquare": lambda x, axes, r: _sum(r(x * x), axes, r),
    "ReduceLogSum": _in_floats(lambda x, axes, r: np.log(r(_sum(x, axes, r))).astype(x.dtype)),
    "ReduceLogSumExp": _in_floats(_log_sum_exp),
}


def _fold(operator: str) -> Own:
    def own(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
        as_input = opset >= (13 if operator == "ReduceSum" else 18)
        given = (x[1].tolist() if len(x) > 1 else []) if as_input else list(attributes.get("axes", []))
        if not given and as_input and attributes.get("noop_with_empty_axes"):
            axes: tuple[int, ...] = ()
        else:
            axes = tuple(a % x[0].ndim for a in given) or tuple(range(x[0].ndim))
        result = np.asarray(_FOLDS[operator](x[0], axes, r))
        return [result if attributes["keepdims"] else np.squeeze(result, axes)]

    return own


def _softmax(opset: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    return [r(np.exp(_log_softmax(opset, attributes, x, r)[0]))]


def _log_softmax(opset: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    shape, axis = x[0].shape, int(attributes["axis"])
    rows = x[0]
    if opset < 13:
        axis = axis if axis >= 0 else axis + len(shape)
        rows, axis = x[0].reshape(prod(shape[:axis]), prod(shape[axis:])), 1
    if rows.size == 0:
        return [x[0]]
    shifted = r(rows - np.max(rows, axis=axis, keepdims=True))
    total = r(_sum(r(np.exp(shifted)), (axis % rows.ndim,), r))
    return [np.asarray(r(shifted - r(np.log(total)))).reshape(shape)]


def _batch_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    scale, bias, mean, variance = (v.reshape(-1, *[1] * (x[0].ndim - 2)) for v in x[1:])
    deviation = r(np.sqrt(r(variance + x[0].dtype.type(attributes["epsilon"]))))
    return [r(r.term(scale, r(r(x[0] - mean) / deviation)) + bias)]


def _mean_variance(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    axes = tuple(a % x[0].ndim for a in attributes["axes"])
    centred = r(x[0] - r(mean(x[0], axes, r)))
    variance = r(mean(r(centred * centred), axes, r))
    return [r(centred / r(r(np.sqrt(variance)) + x[0].dtype.type(np.float32(1e-9))))]


def _standardised(x: Array, axes: tuple[int, ...], epsilon: float, r: Round) -> tuple[Any, Any, Any]:
    """What is left of x, its mean, and the deviation by which it was divided."""
    average = r(mean(x, axes, r))
    centred = r(x - average)
    variance = r(mean(r(centred * centred), axes, r))
    deviation = r(np.sqrt(r(variance + x.dtype.type(epsilon))))
    return r(centred / deviation), average, deviation


def _group_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    data = x[0]
    rows = data.reshape(data.shape[0], attributes["num_groups"], -1)
    normal, _mean, _deviation = _standardised(rows, (2,), attributes["epsilon"], r)
    return _affine(normal.reshape(data.shape), x, r)


def _instance_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    normal, _mean, _deviation = _standardised(x[0], tuple(range(2, x[0].ndim)), attributes["epsilon"], r)
    return _affine(normal, x, r)


def _affine(normal: Array, x: list[Array], r: Round) -> list[Array]:
    scale, bias = (v.reshape(-1, *[1] * (normal.ndim - 2)) for v in x[1:])
    return [r(r.term(normal, scale) + bias)]


def _layer_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    axes = tuple(range(attributes["axis"] % x[0].ndim, x[0].ndim))
    normal, average, deviation = _standardised(x[0], axes, attributes["epsilon"], r)
    scaled = r(normal * x[1]) if len(x) < 3 else r(r.term(normal, x[1]) + x[2])
    return [scaled, average, r(x[0].dtype.type(1) / deviation)]


def _rms_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    axes = tuple(range(attributes["axis"] % x[0].ndim, x[0].ndim))
    square = r(mean(r(x[0] * x[0]), axes, r))
    return [r(r(x[0] / r(np.sqrt(r(square + x[0].dtype.type(attributes["epsilon"]))))) * x[1])]


def _lp_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    axis = (int(attributes["axis"]) % x[0].ndim,)
    size = _sum(np.abs(x[0]), axis, r) if attributes["p"] == 1 else np.sqrt(r(_squares(x[0], axis, r)))
    return [r(x[0] / np.where(size == 0, x[0].dtype.type(1), r(size)))]


def _squares(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """The sum of squares. Where it is 0 though x is not, what is divided by it is said by no definition: ONNX's
    reference evaluator divides by 1, ONNX Runtime gives 0, and exactly it is no 0."""
    total = _sum(r(x * x), axes, r)
    vanished = (total == 0) & np.any(x != 0, axis=axes, keepdims=True)
    return r.product(total, 0.0, np.where(vanished, 0.0, 1.0))


def _local_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    size, t = int(attributes["size"]), x[0].dtype.type
    before = (size - 1) // 2
    squares = r(x[0] * x[0]).astype(np.float64)
    padded = np.pad(squares, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x[0].ndim - 2)])
    total = r(sum(padded[:, n : n + x[0].shape[1]] for n in range(size)).astype(x[0].dtype))  # pyright: ignore
    base = r(t(attributes["bias"]) + r.term(t(attributes["alpha"]), r(total / t(size))))
    return [r(x[0] / r(np.power(base, t(attributes["beta"]))))]


OWN_FOLDS: Mapping[str, Own] = {
    **{operator: _carried(_fold(operator)) for operator in _FOLDS},
    "LogSoftmax": _carried(_log_softmax),
    "Softmax": _carried(_softmax),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _carried(_layer_norm),
    "RMSNormalization": _carried(_rms_norm),
    "InstanceNormalization": _carried(_instance_norm),
    "GroupNormalization": _carried(_group_norm),
    "MeanVarianceNormalization": _carried(_mean_variance),
    "LpNormalization": _carried(_lp_norm),
    "LRN": _carried(_local_norm),
}

__all__ = ["OWN_FOLDS", "Fold", "largest", "mean", "wide_sum"]
