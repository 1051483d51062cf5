"""Scattering, from the side of the result: each element asks which updates name it.

That takes a comparison for each pair of an element along the scattered dimension and an update; positions that are
known are sorted out while importing.
"""

from __future__ import annotations

from math import inf, prod

import numpy as np
from xdsl.dialects.builtin import i1, i32, i64

from treadle.dialects.graph.dtypes import integer_limits
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import bound_of, is_symbolic
from treadle.frontends.common.indexing import counted_from_front
from treadle.frontends.common.reserve import Reserves


def scattered(
    node: Reserves, g: GraphBuilder, data: Tensor, positions: Tensor, updates: Tensor, reduction: str = "none"
) -> Tensor:
    """`data[b, positions[b, m], s]` replaced by, or combined with, `updates[b, m, s]`.

    Of several updates of one element the last one counts. Positions outside of the data change nothing.
    """
    batch, extent, width = data.shape
    count = positions.shape[1]
    if count == 0 or prod(data.shape) == 0:
        return data
    if reduction != "none":
        return _combined(g, data, positions, updates, reduction)
    last = _last_updates(node, g, positions, extent)
    start = g.reshape(g.iota(batch, bound_of(count), laid_out=True), (batch, 1))
    chosen = g.add(g.binary("max", last, 0), start)
    rows = g.gather(g.reshape(updates, (batch * count, width)), chosen, 0, laid_out=True)
    return g.where(g.reshape(g.binary("ge", last, 0), (batch, extent, 1)), rows, data)


def _last_updates(node: Reserves, g: GraphBuilder, positions: Tensor, extent: int) -> Tensor:
    """`[batch, extent]`: the number of the last update of each element, -1 for one without."""
    batch, count = positions.shape
    if positions.array is None or is_symbolic((batch, extent, count)):
        match = _matches(g, positions, extent)
        last = g.reduce("max", g.where(match, g.iota(count), g.constant(np.array(-1))), [2], keep=False)
        return g.binary("max", last, -1) if is_symbolic((count,)) else last
    node.reserve((batch, extent), np.dtype(np.int64))
    last = np.full((batch, extent), -1)
    for row, places in zip(last, positions.array, strict=True):
        for number, place in enumerate(places.tolist()):
            if 0 <= place < extent:
                row[place] = number
    return g.constant(last)


def _matches(g: GraphBuilder, positions: Tensor, extent: int) -> Tensor:
    """`[batch, extent, updates]`: whether the update is one of the element."""
    batch, count = positions.shape
    return g.binary("eq", g.reshape(positions, (batch, 1, count)), g.reshape(g.iota(extent), (extent, 1)))


def _combined(g: GraphBuilder, data: Tensor, positions: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if data.element == i1:  # a sum is an or, a product an and
        of_numbers = {"add": "max", "mul": "min"}.get(reduction, reduction)
        return g.cast(_combined(g, g.cast(data, i32), positions, g.cast(updates, i32), of_numbers), i1)
    batch, extent, _ = data.shape
    count, width = updates.shape[1:]
    wide, terms = g.widened(data), g.reshape(g.widened(updates), (batch, 1, count, width))
    lowest, highest = (-inf, inf) if data.is_float else integer_limits(data.element)
    neutral = {"add": 0, "mul": 1, "max": lowest, "min": highest}[reduction]
    match = g.reshape(_matches(g, positions, extent), (batch, extent, count, 1))
    total = g.reduce(reduction, g.where(match, terms, g.scalar(neutral, wide)), [2], keep=False)
    return g.cast(g.binary(reduction, wide, total), data.element)


def scatter_elements(
    node: Reserves, g: GraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str
) -> Tensor:
    """Each update replaces, or is combined with, the element with its own coordinates, but the index along the axis."""
    perm = [*(d for d in range(data.rank) if d != axis), axis]
    positions = counted_from_front(g, g.cast(indices, i64), data.shape[axis])
    positions, rows = (g.transpose(v, perm) for v in (positions, updates))
    lead, whole = rows.shape[:-1], g.transpose(data, perm)
    part = g.slice(whole, [0] * data.rank, [*lead, whole.shape[-1]], [1] * data.rank)
    values, places, terms = (g.reshape(v, (prod(lead), v.shape[-1])) for v in (part, positions, rows))
    cells, moved = g.reshape(values, (*values.shape, 1)), g.reshape(terms, (*terms.shape, 1))
    changed = g.reshape(scattered(node, g, cells, places, moved, reduction), part.shape)
    return g.transpose(_put_back(node, g, whole, changed), [perm.index(d) for d in range(data.rank)])


def _put_back(node: Reserves, g: GraphBuilder, whole: Tensor, part: Tensor) -> Tensor:
    """A tensor with its first elements along each dimension replaced."""
    if part.shape == whole.shape:
        return part
    node.reserve(whole.shape, np.dtype(np.bool_))
    inside = np.zeros(whole.shape, np.bool_)
    inside[tuple(slice(e) for e in part.shape)] = True
    pads = [0] * whole.rank + [e - p for e, p in zip(whole.shape, part.shape, strict=True)]
    return g.where(g.constant(inside), g.pad(part, pads, 0), whole)


__all__ = ["scatter_elements", "scattered"]
