"""Reductions and normalisations that are defined here; see `own_definitions.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.own_definitions import Array, Attributes, Own, Round

Fold = Callable[["Array", "tuple[int, ...]", Round], Any]


def _sum(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """Sums of narrow floats run in wide ones, and are rounded once; those of integers wrap."""
    if x.dtype.kind != "f":
        return np.sum(x, axis=axes, keepdims=True, dtype=x.dtype)
    total = np.sum(x, axis=axes, keepdims=True, dtype=np.float64).astype(x.dtype)
    return r.total(total, np.sum(finite(x), axis=axes, keepdims=True))


def finite(x: Array) -> Array:
    """Magnitudes, those that are not finite left away."""
    return np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0)


def mean(x: Array, axes: tuple[int, ...], r: Round) -> Any:
    """The mean along axes, which are kept; that of integers is truncated."""
    count = prod(x.shape[a] for a in axes)
    if x.dtype.kind == "f":
        total = np.sum(x, axis=axes, keepdims=True, dtype=np.float64)
        result = (total / np.float64(count)).astype(x.dtype)
        return r.total(result, np.sum(finite(x), axis=axes, keepdims=True))
    total = _sum(x, axes, r)
    return (np.sign(total) * (np.abs(total) // max(count, 1))).astype(x.dtype)


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
    return np.prod(x, axis=axes, keepdims=True, dtype=wide).astype(x.dtype)


_FOLDS: Mapping[str, Fold] = {
    "ReduceSum": _sum,
    "ReduceMean": mean,
    "ReduceProd": _product,
    "ReduceMax": largest,
    "ReduceMin": _smallest,
    "ReduceL1": lambda x, axes, r: _sum(np.abs(x), axes, r),
    "ReduceL2": lambda x, axes, r: np.sqrt(r(_sum(r(x * x), axes, r))).astype(x.dtype),
    "ReduceSumSquare": lambda x, axes, r: _sum(r(x * x), axes, r),
    "ReduceLogSum": lambda x, axes, r: np.log(r(_sum(x, axes, r))).astype(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
}


def _fold(operator: str) -> Own:
    def own(opset: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
        as_input = opset >= (13 if operator == "ReduceSum" else 18)
        given = (x[1].tolist() if len(x) > 1 else []) if as_input else list(attributes.get("axes", []))
        if not given and attributes.get("noop_with_empty_axes"):
            axes: tuple[int, ...] = ()
        else:
            axes = tuple(a % x[0].ndim for a in given) or tuple(range(x[0].ndim))
        result = np.asarray(_FOLDS[operator](x[0], axes, r))
        return [result if attributes.get("keepdims", 1) else np.squeeze(result, axes)]

    return own


def _softmax(opset: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    return [r(np.exp(_log_softmax(opset, attributes, x, r)[0]))]


def _log_softmax(opset: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    shape, axis = x[0].shape, int(attributes.get("axis", -1 if opset >= 13 else 1))
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
    deviation = r(np.sqrt(r(variance + x[0].dtype.type(attributes.get("epsilon", 1e-5)))))
    return [r(r(scale * r(r(x[0] - mean) / deviation)) + bias)]


def _mean_variance(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    axes = tuple(a % x[0].ndim for a in attributes.get("axes", [0, 2, 3]))
    centred = r(x[0] - r(mean(x[0], axes, r)))
    variance = r(mean(r(centred * centred), axes, r))
    return [r(centred / r(r(np.sqrt(variance)) + x[0].dtype.type(1e-9)))]


def _standardised(x: Array, axes: tuple[int, ...], epsilon: float, r: Round) -> Any:
    centred = r(x - r(mean(x, axes, r)))
    variance = r(mean(r(centred * centred), axes, r))
    return r(centred / r(np.sqrt(r(variance + x.dtype.type(epsilon)))))


def _group_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    data = x[0]
    rows = data.reshape(data.shape[0], attributes["num_groups"], -1)
    normal = _standardised(rows, (2,), attributes.get("epsilon", 1e-5), r).reshape(data.shape)
    scale, bias = (v.reshape(-1, *[1] * (data.ndim - 2)) for v in x[1:])
    return [r(r(normal * scale) + bias)]


def _lp_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    axis = (int(attributes.get("axis", -1)) % x[0].ndim,)
    size = _sum(np.abs(x[0]), axis, r) if attributes.get("p", 2) == 1 else np.sqrt(r(_sum(r(x[0] * x[0]), axis, r)))
    return [r(x[0] / np.where(size == 0, x[0].dtype.type(1), r(size)))]


def _local_norm(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    size, t = int(attributes["size"]), x[0].dtype.type
    before = (size - 1) // 2
    squares = r(x[0] * x[0]).astype(np.float64)
    padded = np.pad(squares, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x[0].ndim - 2)])
    total = r(sum(padded[:, n : n + x[0].shape[1]] for n in range(size)).astype(x[0].dtype))  # pyright: ignore
    base = r(t(attributes.get("bias", 1)) + r(t(attributes.get("alpha", 1e-4)) * r(total / t(size))))
    return [r(x[0] / r(np.power(base, t(attributes.get("beta", 0.75)))))]


OWN_FOLDS: Mapping[str, Own] = {
    **{operator: _fold(operator) for operator in _FOLDS},
    "LogSoftmax": _log_softmax,
    "Softmax": _softmax,
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_norm,
    "LRN": _local_norm,
}

__all__ = ["OWN_FOLDS", "Fold", "finite", "largest", "mean"]
