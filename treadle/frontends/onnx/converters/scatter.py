"""Scatter operators, from the side of the result: each element asks which updates name it.

That takes a comparison for each pair of an element along the scattered dimension and an update; positions that are
known are sorted out while importing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import i1, i64

from treadle.frontends.common import scatter as common
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.indexing import counted_from_front
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

REDUCTIONS = ("none", "add", "mul", "max", "min")


def _reduction(node: Node, data: Tensor) -> str:
    reduction = node.string("reduction", "none", REDUCTIONS)
    if reduction != "none" and data.element == i1:
        raise node.error(f"reduction {reduction} of bools", "none, or numbers")
    return reduction


@converts("Scatter", since=9)
@converts("ScatterElements", since=11)
def scatter_elements(node: Node, g: GraphBuilder) -> Tensor:
    """Each update replaces the element with its own coordinates, but the index along the axis."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    axis = node.axis(node.int("axis", 0), data.rank)
    fits = indices.rank == data.rank and all(
        i <= e for d, (i, e) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis
    )
    if not fits or updates.shape != indices.shape:
        shapes = f"indices of shape {indices.shape} and updates of shape {updates.shape} into data of {data.shape}"
        raise node.error(shapes, "indices and updates of one shape, no larger than the data's but along the axis")
    return common.scatter_elements(node, g, data, indices, updates, axis, _reduction(node, data))


@converts("ScatterND", since=11)
def scatter_nd(node: Node, g: GraphBuilder) -> Tensor:
    """Each update replaces the slice at a tuple of indices of the leading dimensions."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    width = indices.shape[-1] if indices.rank else 0
    expected = (*indices.shape[:-1], *data.shape[width:])
    if not 1 <= width <= data.rank or updates.shape != expected:
        shapes = f"indices of shape {indices.shape} and updates of shape {updates.shape} into data of {data.shape}"
        raise node.error(shapes, f"tuples no longer than the data's rank, and updates of shape {expected}")
    lead, count = data.shape[:width], prod(indices.shape[:-1])
    wide = g.cast(indices, i64)
    linear: Tensor | None = None
    inside: Tensor | None = None
    for n, extent in enumerate(lead):
        index = g.reshape(g.narrow(wide, wide.rank - 1, n, 1), (1, count))
        index = counted_from_front(g, index, extent)
        fits = g.binary("and", g.binary("ge", index, 0), g.binary("lt", index, extent))
        inside = fits if inside is None else g.binary("and", inside, fits)
        linear = index if linear is None else g.add(g.mul(linear, extent), index)
    assert linear is not None and inside is not None
    positions = g.where(inside, linear, g.constant(np.array(-1)))
    rest = prod(data.shape[width:])
    flat, terms = g.reshape(data, (1, prod(lead), rest)), g.reshape(updates, (1, count, rest))
    return g.reshape(common.scattered(node, g, flat, positions, terms, _reduction(node, data)), data.shape)


@converts("TensorScatter", since=24)
def tensor_scatter(node: Node, g: GraphBuilder) -> Tensor:
    """A cache `[batch, ..., L, ...]` with consecutive slices replaced, in each entry of the batch from an index on."""
    cache, update = node.input(0), node.input(1)
    axis = node.axis(node.int("axis", -2), cache.rank)
    extent, count, batch = cache.shape[axis], update.shape[axis] if update.rank == cache.rank else 0, cache.shape[0]
    circular = node.string("mode", "linear", ("linear", "circular")) == "circular"
    expected = (*cache.shape[:axis], count, *cache.shape[axis + 1 :])
    if axis == 0 or not 0 < count <= extent or update.shape != expected:
        shapes = f"an update of shape {update.shape} along axis {axis} of {cache.shape}"
        raise node.error(shapes, "another axis than the batch, and no more slices than the cache has")
    starts = node.optional(2) or g.filled(0, np.dtype(np.int64), (batch,))
    positions = g.add(g.reshape(g.cast(starts, i64), (batch, 1)), g.iota(count))
    if circular:
        positions = g.binary("mod", positions, extent)
    perm = [0, axis, *(d for d in range(1, cache.rank) if d != axis)]
    rows, terms = (_rows(g, v, perm) for v in (cache, update))
    changed = common.scattered(node, g, rows, positions, terms)
    moved = g.reshape(changed, [cache.shape[d] for d in perm])
    return g.transpose(moved, [perm.index(d) for d in range(cache.rank)])


def _rows(g: GraphBuilder, x: Tensor, perm: Sequence[int]) -> Tensor:
    batch, count, *rest = (x.shape[d] for d in perm)
    return g.reshape(g.transpose(x, perm), (batch, count, prod(rest)))


@converts("MaxUnpool", since=9)
def max_unpool(node: Node, g: GraphBuilder) -> Tensor:
    """Each element at the position in the result, counted through all of its dimensions, that an index gives it."""
    x, indices, kernel = node.input(0), node.input(1), node.ints("kernel_shape")
    rank = x.rank - 2
    if rank < 1 or kernel is None or len(kernel) != rank or indices.shape != x.shape:
        message = f"a window {kernel} over an input of shape {x.shape}, indices of {indices.shape}"
        raise node.error(message, "an extent for each spatial dimension, and an index for each element")
    strides, pads = node.ints_of_length("strides", rank, 1), node.ints_of_length("pads", 2 * rank, 0)
    extents = [
        (e - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank] for d, e in enumerate(x.shape[2:])
    ]  # fmt: skip
    given = node.known_ints(2, "the result's shape") if node.optional(2) is not None else [*x.shape[:2], *extents]
    if len(given) != x.rank or given[:2] != list(x.shape[:2]) or min(given) < 1:
        raise node.error(f"a result of shape {given}", f"{list(x.shape[:2])} and {rank} extents")
    planes, size = prod(given[:2]), prod(given[2:])
    # ONNX counts in the result without `output_shape`, which embeds it.
    flat = _embedded(node, g, g.reshape(g.cast(indices, i64), (planes, prod(x.shape[2:]))), extents, given[2:])
    zeros = g.broadcast(g.scalar(0, x), (planes, size, 1))
    values = g.reshape(x, (planes, prod(x.shape[2:]), 1))
    return g.reshape(common.scattered(node, g, zeros, flat, values), given)


def _embedded(node: Node, g: GraphBuilder, indices: Tensor, extents: Sequence[int], target: Sequence[int]) -> Tensor:
    """Positions in the whole result of `extents` as positions in a plane of `target`."""
    planes = indices.shape[0]
    index = g.sub(indices, g.reshape(g.iota(planes, prod(extents)), (planes, 1)))
    if list(extents) == list(target):
        return index
    result: Tensor | None = None
    for d, wanted in enumerate(target):
        coordinate = g.binary("mod", g.div(index, prod(extents[d + 1 :])), extents[d])
        result = coordinate if result is None else g.add(g.mul(result, wanted), coordinate)
    if result is None or any(t < e for t, e in zip(target, extents, strict=True)):
        raise node.error(f"a result of {list(target)} for {list(extents)}", "no smaller extents")
    return result
