"""Products and windows that are defined here; see `own_definitions.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.own_definitions import Array, Attributes, Own, Round
from tests.fuzz.own_folds import Fold, finite, largest, mean, wide_sum


def _gemm(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    a = x[0].T if attributes["transA"] else x[0]
    b = x[1].T if attributes["transB"] else x[1]
    if a.dtype.kind in "iu":
        return [np.matmul(a, b) + (x[2] if len(x) > 2 else a.dtype.type(0))]
    t = a.dtype.type
    alpha = t(attributes["alpha"])
    result = r(alpha * _products(a, b, r, max(1.0, abs(float(alpha)))))
    return [result if len(x) < 3 else r(result + r.term(t(attributes["beta"]), x[2]))]


def _products(a: Array, b: Array, r: Round, scale: float = 1.0) -> Any:
    """The product; with a scale, terms may be scaled before they are added up."""
    total = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    return r.total(total, scale * np.matmul(finite(a), finite(b)), a.shape[-1], scale)


def _matmul(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    a, b = x
    return [np.matmul(a, b) if a.dtype.kind in "iu" else _products(a, b, r)]


def _windows(attributes: Attributes, shape: Sequence[int]) -> list[tuple[tuple[int, ...], list[list[int]]]]:
    """Each position of the output, and along each dimension what its window sees of the input."""
    rank = len(shape)
    kernel, strides = list(attributes["kernel_shape"]), list(attributes.get("strides", [1] * rank))
    pads = list(attributes.get("pads", [0] * 2 * rank))
    counts = [(shape[d] + pads[d] + pads[d + rank] - kernel[d]) // strides[d] + 1 for d in range(rank)]
    found: list[tuple[tuple[int, ...], list[list[int]]]] = []
    for place in product(*map(range, counts)):
        starts = [p * s - before for p, s, before in zip(place, strides, pads, strict=False)]
        found.append(
            (place, [[i for i in range(b, b + k) if 0 <= i < e] for b, k, e in zip(starts, kernel, shape, strict=True)])
        )
    return found


def _max_pool(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    windows = _windows(attributes, x[0].shape[2:])
    result = np.empty((*x[0].shape[:2], *(n + 1 for n in windows[-1][0])), x[0].dtype)
    for place, seen in windows:
        part = x[0][np.ix_(range(x[0].shape[0]), range(x[0].shape[1]), *seen)]
        result[(..., *place)] = largest(part, tuple(range(2, part.ndim)), r).reshape(part.shape[:2])
    return [result]


def _average_pool(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    windows = _windows(attributes, x[0].shape[2:])
    result = np.empty((*x[0].shape[:2], *(n + 1 for n in windows[-1][0])), x[0].dtype)
    for place, seen in windows:
        part = x[0][np.ix_(range(x[0].shape[0]), range(x[0].shape[1]), *seen)]
        count = prod(attributes["kernel_shape"]) if attributes["count_include_pad"] else prod(map(len, seen))
        axes = tuple(range(2, part.ndim))
        total = np.squeeze(wide_sum(part, axes, r), axes)
        average = (total / np.float64(count)).astype(x[0].dtype)
        result[(..., *place)] = r.total(average, np.sum(finite(part), axis=axes), count, count)
    return [result]


def _conv(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    data, weights = x[0], x[1]
    rank = data.ndim - 2
    strides, dilations = (list(attributes.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(attributes.get("pads", [0] * 2 * rank))
    border = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    padded, inside = np.pad(data, border), np.pad(np.ones(data.shape, np.bool_), border)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, weights.shape[2:], strict=True)]
    counts = [(e - w) // s + 1 for e, w, s in zip(padded.shape[2:], reach, strides, strict=True)]
    if min(counts) < 1:
        raise ValueError("no position")
    taps = []
    for place in product(*map(range, weights.shape[2:])):
        starts = [p * d for p, d in zip(place, dilations, strict=True)]
        seen = tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, counts, strides, strict=True))
        taps.append((padded[(..., *seen)], inside[(..., *seen)], weights[(..., *place)]))
    return [_with_bias(_grouped(taps, int(attributes["group"]), r), x, r)]


def _grouped(taps: Sequence[tuple[Array, Array, Array]], groups: int, r: Round) -> Any:
    """The sum over taps, each of data `[N, C, ...]`, where it is data at all, and weights `[M, C / groups]`.

    Whether an infinite weight is multiplied by a zero of the border, ONNX does not say: the native evaluation does.
    """
    total: Any = 0
    magnitude: Any = 0
    for data, inside, weights in taps:
        d = data.reshape(data.shape[0], groups, 1, -1, *data.shape[2:]).astype(np.float64)
        w = weights.reshape(1, groups, -1, weights.shape[1], *[1] * (data.ndim - 2)).astype(np.float64)
        terms = d * w
        within = inside.reshape(d.shape)
        known = terms if r.native else np.where(within, terms, 0)
        total = total + known.sum(3)
        magnitude = magnitude + np.where(within, finite(d) * finite(w), 0).sum(3)
    shape = (total.shape[0], -1, *total.shape[3:])
    dtype = taps[0][0].dtype
    if 0 in total.shape:
        return np.zeros((total.shape[0], total.shape[1] * total.shape[2], *total.shape[3:]), dtype)
    terms = len(taps) * taps[0][2].shape[1]
    return r.total(total.reshape(shape).astype(dtype), magnitude.reshape(shape), terms)


def _with_bias(y: Array, x: Sequence[Any], r: Round) -> Any:
    return y if len(x) < 3 else r(y + x[2].reshape(1, -1, *[1] * (y.ndim - 2)))


def _conv_transpose(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    """A convolution of the data with zeros put between, by the weights from behind."""
    data, weights = x[0], x[1]
    rank, groups = data.ndim - 2, int(attributes["group"])
    strides, pads = list(attributes.get("strides", [1] * rank)), list(attributes.get("pads", [0] * 2 * rank))
    extents = [(e - 1) * s + 1 for e, s in zip(data.shape[2:], strides, strict=True)]
    seen = (..., *(slice(None, None, s) for s in strides))
    spread, inside = np.zeros((*data.shape[:2], *extents), data.dtype), np.zeros((*data.shape[:2], *extents), np.bool_)
    spread[seen], inside[seen] = data, True
    kernel = weights.shape[2:]
    border = [(0, 0), (0, 0), *((k - 1, k - 1) for k in kernel)]
    spread, inside = np.pad(spread, border), np.pad(inside, border)
    counts = [e + k - 1 for e, k in zip(extents, kernel, strict=True)]
    taps = []
    for place in product(*map(range, kernel)):
        at = (..., *(slice(p, p + n) for p, n in zip(place, counts, strict=True)))
        tap = weights[(..., *(k - 1 - p for k, p in zip(kernel, place, strict=True)))]
        each = tap.reshape(groups, -1, tap.shape[1]).transpose(0, 2, 1).reshape(-1, tap.shape[0] // groups)
        taps.append((spread[at], inside[at], each))
    result = _grouped(taps, groups, r)
    kept = tuple(slice(b, n - e) for b, e, n in zip(pads[:rank], pads[rank:], counts, strict=True))
    return [_with_bias(result[(..., *kept)], x, r)]


def _global(fold: Fold) -> Own:
    return lambda _, __, x, r: [np.asarray(fold(x[0], tuple(range(2, x[0].ndim)), r))]


def _resize(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    """The nearest neighbour below; with half pixels by whole factors, that is the same."""
    result = x[0]
    for axis, (old, new) in enumerate(zip(x[0].shape, x[3].tolist(), strict=True)):
        result = np.take(result, np.arange(new) * old // new, axis)
    return [result]


OWN_WINDOWS: Mapping[str, Own] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalMaxPool": _global(largest),
    "GlobalAveragePool": _global(mean),
    "Resize": _resize,
}

__all__ = ["OWN_WINDOWS"]
