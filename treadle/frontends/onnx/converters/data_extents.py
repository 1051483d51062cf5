"""Operators whose results have as many elements as the data says: NonZero, Compress, Unique (docs/adr/0047)."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import i1, i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.compaction import coordinates, cut, found_positions
from treadle.frontends.common.extent import is_symbolic
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


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
    """The distinct elements, in ascending order or that of their first places; these places, the number that each
    element has in the result, and how often each is there. Takes a comparison for each pair of elements."""
    x = static(node, node.input())
    if node.has("axis") and x.rank > 1:
        raise node.error("attribute 'axis' is given", "no axis, or an input of rank 1")
    node.ignore("axis")
    flat = g.reshape(x, (prod(x.shape),))
    (count,) = flat.shape
    places = np.arange(count)
    row, column = g.reshape(flat, (1, count)), g.reshape(flat, (count, 1))
    same = g.binary("eq", row, column)
    earlier = g.binary("and", same, g.constant(places[None, :] < places[:, None]))
    first = g.unary("not", g.reduce("or", earlier, [1], keep=False))
    positions, extent = found_positions(g, first)
    before = g.binary("lt", row, column) if node.flag("sorted", True) else g.constant(places[None, :] < places[:, None])
    rank = _count(g, g.binary("and", before, g.reshape(first, (1, count))), 1)
    if node.flag("sorted", True):
        # Of the first places, in their order, each goes to the place of its rank.
        at = g.binary("eq", g.reshape(rank, (1, count)), g.constant(places[:, None]))
        at = g.binary("and", at, g.reshape(first, (1, count)))
        positions = g.reduce("max", g.where(at, g.constant(places[None, :]), g.constant(np.array(0))), [1], keep=False)
    own = g.reduce("min", g.where(same, g.constant(places[None, :]), g.constant(np.array(count))), [1], keep=False)
    inverse, counts = g.gather(rank, own, 0), g.gather(_count(g, same, 1), positions, 0)
    values = g.gather(flat, positions, 0)
    return [cut(g, values, (extent,)), cut(g, positions, (extent,)), inverse, cut(g, counts, (extent,))]


def _count(g: GraphBuilder, chosen: Tensor, dim: int) -> Tensor:
    return g.reduce("add", g.cast(chosen, i64), [dim], keep=False)
