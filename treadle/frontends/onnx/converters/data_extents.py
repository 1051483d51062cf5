"""Operators whose results have as many elements as the data says: NonZero, Compress, Unique (docs/adr/0047)."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import i1, i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import is_symbolic
from treadle.frontends.common.indexing import coordinates, cut, found_positions
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node


def static(node: Node, x: Tensor) -> Tensor:
    """TreadleError for an operand of symbolic extents, or without elements."""
    if is_symbolic(x.shape) or 0 in x.shape or x.rank == 0:
        raise node.error(f"an operand of shape {x.shape}", "rank 1 and more, and static extents from 1 upwards")
    return x


@converts("NonZero", since=9)
def non_zero(node: Node, g: GraphBuilder) -> Tensor:
    """The coordinates of the elements that are not zero, a column for each."""
    x = static(node, node.input())
    flat = g.reshape(x, (prod(x.shape),))
    chosen = flat if x.element == i1 else g.binary("ne", flat, 0)
    positions, extent = found_positions(g, chosen)
    rows = g.stack(coordinates(g, positions, x.shape), 0)
    return cut(g, rows, (x.rank, extent))


@converts("Compress", since=9)
def compress(node: Node, g: GraphBuilder) -> Tensor:
    """The slices along an axis, or the elements, for which a condition holds; it may be shorter than the axis."""
    x, condition = static(node, node.input(0)), static(node, node.input(1))
    if not node.has("axis"):
        x = g.reshape(x, (prod(x.shape),))
    axis = node.axis(node.int("axis", 0), x.rank)
    if condition.rank != 1 or condition.element != i1:
        raise node.error(f"a condition {condition.type}", "a vector of bools")
    condition = g.narrow(condition, 0, 0, min(condition.shape[0], x.shape[axis]))
    positions, extent = found_positions(g, condition)
    return cut(g, g.gather(x, positions, axis), (*x.shape[:axis], extent, *x.shape[axis + 1 :]))


@converts("Unique", since=11)
def unique(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The distinct slices along an axis, or elements, in ascending order or that of their first places; these places,
    the number that each has in the result, and how often each is there. Takes a comparison for each pair."""
    x = static(node, node.input())
    if not node.has("axis"):
        x = g.reshape(x, (prod(x.shape),))
    axis, is_sorted = node.axis(node.int("axis", 0), x.rank), node.flag("sorted", True)
    count = x.shape[axis]
    node.reserve((count, count), np.dtype(np.bool_))
    less, same = _compared(g, x, axis)
    places = np.arange(count)
    is_before = g.constant(places[None, :] < places[:, None])
    first = g.unary("not", g.reduce("or", g.binary("and", same, is_before), [1], keep=False))
    positions, extent = found_positions(g, first)
    before = g.binary("and", less if is_sorted else is_before, g.reshape(first, (1, count)))
    rank = _count(g, before, 1)
    if is_sorted:
        # Of the first places, in their order, each goes to the place of its rank.
        at = g.binary("eq", g.reshape(rank, (1, count)), g.constant(places[:, None]))
        at = g.binary("and", at, g.reshape(first, (1, count)))
        positions = g.reduce("max", g.where(at, g.constant(places[None, :]), g.constant(np.array(0))), [1], keep=False)
    own = g.reduce("min", g.where(same, g.constant(places[None, :]), g.constant(np.array(count))), [1], keep=False)
    inverse, counts = g.gather(rank, own, 0), g.gather(_count(g, same, 1), positions, 0)
    values = cut(g, g.gather(x, positions, axis), (*x.shape[:axis], extent, *x.shape[axis + 1 :]))
    return [values, cut(g, positions, (extent,)), inverse, cut(g, counts, (extent,))]


def _compared(g: GraphBuilder, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """`[i, j]`: whether slice j is less than slice i, by the first elements that differ, and whether both are equal."""
    count = x.shape[axis]
    order = (axis, *(d for d in range(x.rank) if d != axis))
    rows = g.reshape(g.transpose(x, order), (count, prod(x.shape) // count))
    width = rows.shape[1]
    if width == 1:
        row, column = g.reshape(rows, (1, count)), g.reshape(rows, (count, 1))
        return g.binary("lt", row, column), g.binary("eq", row, column)
    row, column = g.reshape(rows, (1, count, width)), g.reshape(rows, (count, 1, width))
    # An even number where j is less; the first of a pair counts.
    signs = g.where(g.binary("lt", row, column), g.constant(np.array(0)), g.constant(np.array(1)))
    differs = g.where(
        g.binary("eq", row, column), g.constant(np.array(2 * width)), g.add(signs, g.constant(2 * np.arange(width)))
    )
    where = g.reduce("min", differs, [2], keep=False)
    is_even = g.binary("eq", g.binary("mod", where, 2), 0)
    return g.binary("and", is_even, g.binary("lt", where, 2 * width)), g.binary("eq", where, 2 * width)


def _count(g: GraphBuilder, chosen: Tensor, dim: int) -> Tensor:
    return g.reduce("add", g.cast(chosen, i64), [dim], keep=False)
