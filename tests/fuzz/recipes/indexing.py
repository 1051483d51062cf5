"""Choosing elements."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draw import Draw, Recipes, Undrawable
from tests.fuzz.values import DTYPES

_WHOLE = (1, 2, 3, 4, 5)
_FAR = (99, -99, 2**31 - 1, -(2**31))


def _indices(d: Draw, shape: tuple[int, ...], extent: int) -> str:
    """Indices of a dimension, some from the end, a few beyond."""
    low = -extent if d.chance(0.5) else 0
    values = d.rng.integers(low, extent, shape)
    if d.chance(0.1):
        values = np.where(d.rng.random(shape) < 0.2, d.rng.choice(_FAR, shape), values)
    array = values.astype(d.choice((np.int32, np.int64)))
    return d.constant(array) if d.chance(0.4) else d.input(array)


def _gather(d: Draw) -> None:
    name = d.tensor(d.types("Gather"), _WHOLE, least=1)
    shape = d.array(name).shape
    axis = d.between(-len(shape), len(shape) - 1)
    d.node("Gather", [name, _indices(d, d.shape((0, 1, 1, 2)), shape[axis])], axis=axis)


def _gather_elements(d: Draw) -> None:
    name = d.tensor(d.types("GatherElements"), _WHOLE, least=1)
    shape = d.array(name).shape
    axis = d.between(-len(shape), len(shape) - 1)
    chosen = [d.between(1, e) for e in shape]
    chosen[axis] = d.between(0, 7)
    d.node("GatherElements", [name, _indices(d, tuple(chosen), shape[axis])], axis=axis)


def _gather_nd(d: Draw) -> None:
    name = d.tensor(d.types("GatherND"), _WHOLE, least=1)
    shape = d.array(name).shape
    width = d.between(1, len(shape))
    lead = d.shape((0, 1, 2))
    columns = [d.rng.integers(-e, e, lead) for e in shape[:width]]
    array = np.stack(columns, -1).astype(np.int64)
    d.node("GatherND", [name, d.constant(array) if d.chance(0.5) else d.input(array)])


def _concat(d: Draw) -> None:
    name = d.tensor(d.types("Concat"), _WHOLE)
    x = d.array(name)
    axis = d.between(-x.ndim, x.ndim - 1)
    names = [name]
    for _ in range(d.between(0, 3)):
        shape = list(x.shape)
        shape[axis] = d.choice((0, 1, 2, 3, x.shape[axis], x.shape[axis]))
        names.append(d.of(x.dtype, shape))
    d.random.shuffle(names)
    d.node("Concat", names, axis=axis)


def _slice(d: Draw) -> None:
    name = d.tensor(d.types("Slice"), _WHOLE)
    shape = d.array(name).shape
    axes = d.random.sample(range(len(shape)), d.between(1, len(shape)))
    steps = [d.choice((1, 1, 2, 3, -1, -2)) for _ in axes] if d.opset >= 10 else [1] * len(axes)
    starts, ends = ([d.between(-e - 2, e + 2) for e in (shape[a] for a in axes)] for _ in range(2))
    for n, step in enumerate(steps):
        # Outside ONNX's reference evaluator, which is NumPy's slice: it has nothing before the front.
        starts[n] = max(starts[n], -shape[axes[n]]) if step < 0 else starts[n]
        if (d.chance(0.7) and starts[n] > ends[n]) == (step > 0):
            starts[n], ends[n] = ends[n], starts[n]
            starts[n] = max(starts[n], -shape[axes[n]]) if step < 0 else starts[n]
        if d.chance(0.15):
            ends[n] = 2**31 - 1 if step > 0 else -(2**31)
    if d.opset < 10:
        d.node("Slice", [name], starts=starts, ends=ends, axes=axes)
        return
    d.node("Slice", [name, *(d.longs(v) for v in (starts, ends, axes, steps))])


def _split(d: Draw) -> None:
    name = d.tensor(d.types("Split"), _WHOLE)
    shape = d.array(name).shape
    axis = d.between(-len(shape), len(shape) - 1)
    cuts = sorted(d.between(0, shape[axis]) for _ in range(d.between(0, 2)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, shape[axis]], strict=True)]
    if d.opset < 13:
        d.node_of(len(sizes), "Split", [name], split=sizes, axis=axis)
        return
    if d.opset >= 18 and d.chance(0.3) and shape[axis] > 3:
        d.node_of(2, "Split", [name], num_outputs=2, axis=axis)
        return
    d.node_of(len(sizes), "Split", [name, d.longs(sizes)], axis=axis)


def _trilu(d: Draw) -> None:
    name = d.tensor(d.types("Trilu"), (2, 3, 4))
    k = [d.constant(np.array(d.between(-4, 4), np.int64))] if d.chance(0.6) else []
    d.node("Trilu", [name, *k], upper=d.choice((None, 0, 1)))


def _one_hot(d: Draw) -> None:
    depth = d.choice((1, 2, 5, 7))
    types = [t for t in d.types("OneHot", 2) if t in DTYPES]
    index = d.rng.integers(-depth, depth, d.shape((0, 1, 2))).astype(d.choice((np.int32, np.int64)))
    if index.size * depth > 2000:
        raise Undrawable("large")
    values = d.of(d.preferred(types), (2,))
    axis = d.between(-index.ndim - 1, index.ndim)
    d.node("OneHot", [d.input(index), d.constant(np.array(depth, np.int64)), values], axis=axis)


INDEXING: Recipes = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Trilu": _trilu,
    "OneHot": _one_hot,
}

__all__ = ["INDEXING"]
