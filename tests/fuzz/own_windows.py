"""Products and windows that are defined here; see `own_definitions.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.own_definitions import Array, Attributes, Own, Round
from tests.fuzz.own_folds import Fold, largest, mean, wide_sum
from tests.fuzz.sums import Terms, terms_of, terms_of_products


def _gemm(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    a = x[0].T if attributes["transA"] else x[0]
    b = x[1].T if attributes["transB"] else x[1]
    if a.dtype.kind in "iu":
        return [np.matmul(a, b) + (x[2] if len(x) > 2 else a.dtype.type(0))]
    t = a.dtype.type
    alpha = t(attributes["alpha"])
    result = _products(a, b, r, None if alpha == 1 else max(1.0, abs(float(alpha))))
    return [r(alpha * result) if len(x) < 3 else r(r.term(alpha, result) + r.term(t(attributes["beta"]), x[2]))]


def _products(a: Array, b: Array, r: Round, scale: float | None = None) -> Any:
    """The product; with a scale, terms may be scaled before they are added up."""
    total = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)

    def terms() -> Terms:
        found = terms_of_products(a, b, np.matmul, a.shape[-1])
        return found if scale is None else found.scaled(scale)

    return r.total(total, terms, scale or 1.0)


def _matmul(_: int, __: Attributes, x: list[Array], r: Round) -> list[Array]:
    a, b = x
    return [np.matmul(a, b) if a.dtype.kind in "iu" else _products(a, b, r)]


def _borders(attributes: Attributes, shape: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """The padding of an image before all dimensions and behind them; by `auto_pad` for a position at each stride."""
    rank = len(shape)
    kind = attributes.get("auto_pad", b"NOTSET")
    if kind == b"NOTSET":
        return list(attributes.get("pads", [0] * 2 * rank))
    strides, dilations = (list(attributes.get(name, [1] * rank)) for name in ("strides", "dilations"))
    if kind == b"VALID":
        return [0] * 2 * rank
    spans = zip(shape, kernel, strides, dilations, strict=True)
    total = [max((-(-e // s) - 1) * s + (k - 1) * d + 1 - e, 0) for e, k, s, d in spans]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return less + more if kind == b"SAME_UPPER" else more + less


@dataclass(frozen=True)
class _Window:
    """The window of one position of a pool: what it sees of the input along each dimension, and how many of its
    elements are in the padded input."""

    place: tuple[int, ...]
    seen: list[list[int]]
    padded: int


def _windows(attributes: Attributes, shape: Sequence[int]) -> list[_Window]:
    """The windows of all positions: with `ceil_mode` also of those that begin in the padded input and end beyond it,
    unless they begin in the padding behind it."""
    rank = len(shape)
    strides, steps = (list(attributes.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = _borders(attributes, shape, attributes["kernel_shape"])
    sides: list[list[tuple[list[int], int]]] = []
    for d, (extent, kernel) in enumerate(zip(shape, attributes["kernel_shape"], strict=True)):
        first, end, reach = -pads[d], extent + pads[d + rank], (kernel - 1) * steps[d] + 1
        starts = range(first, extent if attributes["ceil_mode"] else end - reach + 1, strides[d])
        if attributes["ceil_mode"]:
            starts = [b for b in starts if b == first or b - strides[d] + reach < end]
        taps = [range(b, b + reach, steps[d]) for b in starts]
        sides.append([([i for i in t if 0 <= i < extent], sum(i < end for i in t)) for t in taps])
    places = [list(enumerate(side)) for side in sides]
    return [
        _Window(tuple(n for n, _ in at), [seen for _, (seen, _) in at], prod(padded for _, (_, padded) in at))
        for at in product(*places)
    ]


def _pooled(attributes: Attributes, x: Array, pool: Callable[[Array, tuple[int, ...], int], Any]) -> list[Array]:
    """What a pool gives for what each window sees, its axes, and how many of its elements are in the padded input."""
    windows = _windows(attributes, x.shape[2:])
    result = np.empty((*x.shape[:2], *(n + 1 for n in windows[-1].place)), x.dtype)
    for window in windows:
        part = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *window.seen)]
        result[(..., *window.place)] = pool(part, tuple(range(2, part.ndim)), window.padded).reshape(part.shape[:2])
    return [result]


def _max_pool(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    return _pooled(attributes, x[0], lambda part, axes, _: largest(part, axes, r))


def _average_pool(_: int, attributes: Attributes, x: list[Array], r: Round) -> list[Array]:
    def average(part: Array, axes: tuple[int, ...], padded: int) -> Any:
        count = padded if attributes["count_include_pad"] else prod(part.shape[2:])
        result = (wide_sum(part, axes, r) / np.float64(count)).astype(part.dtype)
        return np.asarray(r.total(result, lambda: terms_of(part, axes, count), count))

    return _pooled(attributes, x[0], average)


def convolved(_: int, attributes: Attributes, x: list[Any], r: Round) -> list[Array]:
    """The convolution of images with weights, plus a bias if there is one. ValueError if no window fits."""
    data, weights = x[0], x[1]
    rank = data.ndim - 2
    strides, dilations = (list(attributes.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = _borders(attributes, data.shape[2:], weights.shape[2:])
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
    shape = taps[0][0].shape
    data = [d.reshape(shape[0], groups, 1, -1, *shape[2:]).astype(np.float64) for d, _, _ in taps]
    inside = [i.reshape(data[0].shape) for _, i, _ in taps]
    weights = [w.reshape(1, groups, -1, w.shape[1], *[1] * (len(shape) - 2)).astype(np.float64) for _, _, w in taps]
    d, within, w = (np.concatenate(each, axis=3) for each in (data, inside, weights))
    total = (d * w if r.native else np.where(within, d * w, 0)).sum(3).astype(taps[0][0].dtype)
    terms = partial(terms_of_products, d, w, lambda a, b: np.where(within, a * b, 0).sum(3), d.shape[3])
    result = np.asarray(r.total(total, terms))
    return result.reshape(shape[0], result.shape[1] * result.shape[2], *shape[2:])


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
    sizes = x[3].tolist() if len(x) > 3 else np.floor(x[0].shape * x[2].astype(np.float64)).astype(np.int64).tolist()
    for axis, (old, new) in enumerate(zip(x[0].shape, sizes, strict=True)):
        result = np.take(result, np.arange(new) * old // new, axis)
    return [result]


OWN_WINDOWS: Mapping[str, Own] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": convolved,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalMaxPool": _global(largest),
    "GlobalAveragePool": _global(mean),
    "Resize": _resize,
}

__all__ = ["OWN_WINDOWS", "convolved"]
