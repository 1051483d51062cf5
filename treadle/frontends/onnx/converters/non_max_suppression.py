"""NonMaxSuppression: boxes of the highest scores that do not overlap too much, as many as the data says.

In each round, every class of every image takes its best box and drops what overlaps it; a loop goes through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from xdsl.dialects.builtin import f32

from treadle.dialects.graph import ArgReductionOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.indexing import coordinates, cut, found_positions
from treadle.frontends.onnx.converters.data_extents import static
from treadle.frontends.onnx.converters.data_loops import counted_loop, counter
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node


@converts("NonMaxSuppression", since=10)
def non_max_suppression(node: Node, g: GraphBuilder) -> Tensor:
    """`[selected, 3]`: image, class and box."""
    boxes, scores = static(node, node.input(0)), static(node, node.input(1))
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        raise node.error(f"boxes {boxes.type} and scores {scores.type}", "[images, boxes, 4], [images, classes, boxes]")
    images, classes, count = scores.shape
    asked = 0 if node.optional(2) is None else node.known_int(2, "the number of boxes")
    rounds = max(min(asked, count), 0)
    if rounds == 0:
        node.ignore("center_point_box")
        return g.constant(np.zeros((0, 3), np.int64))
    corners = _corners(g, boxes, node.flag("center_point_box"))
    threshold, least = _scalar(node, g, 3, 0.0), node.optional(4)
    none = g.scalar(-inf, scores)
    if least is not None:
        scores = g.where(g.binary("gt", scores, g.reshape(least, ())), scores, none)
    chosen, is_there = _selected(node, g, scores, [*corners, threshold], rounds)
    positions, extent = found_positions(g, g.reshape(is_there, (images * classes * rounds,)))
    image, kind, _ = coordinates(g, positions, (images, classes, rounds))
    box = g.gather(g.reshape(chosen, (images * classes * rounds,)), positions, 0)
    return cut(g, g.stack([image, kind, box], 1), (extent, 3))


def _selected(node: Node, g: GraphBuilder, scores: Tensor, read: Sequence[Tensor], rounds: int) -> list[Tensor]:
    """The box of each round, and whether there was one, `[images, classes, rounds]`; `read` has the corners and the
    threshold."""

    def write(_node: Node, g: GraphBuilder, given: Sequence[Tensor]) -> list[Tensor]:
        _, scores, *corners, threshold = given
        none = g.scalar(-inf, scores)
        best = g.emit(lambda v: ArgReductionOp("max", v[0], 2, True, False), scores)
        is_there = g.binary("gt", g.reduce("max", scores, [2], keep=True), none)
        dropped = g.binary("gt", _overlap(g, corners, best), threshold)
        dropped = g.binary("or", dropped, g.binary("eq", best, g.constant(np.arange(scores.shape[2]))))
        return [g.where(dropped, none, scores), best, is_there]

    body = node.function("round", [counter(), scores, *read], write)
    _, *results = counted_loop(g, body, [scores], read, rounds, body.results[1:])
    return [g.transpose(x, [1, 2, 0, 3]) for x in results]


def _scalar(node: Node, g: GraphBuilder, index: int, default: float) -> Tensor:
    given = node.optional(index)
    return g.constant(np.array(default, np.float32)) if given is None else g.cast(g.reshape(given, ()), f32)


def _corners(g: GraphBuilder, boxes: Tensor, centred: bool) -> list[Tensor]:
    """The lowest and the highest coordinates of each box, `[images, boxes]`: of both axes, in either order."""
    a, b, c, d = (g.entry(boxes, 2, n) for n in range(4))
    if centred:
        half = [g.div(extent, 2) for extent in (c, d)]
        return [g.sub(a, half[0]), g.sub(b, half[1]), g.add(a, half[0]), g.add(b, half[1])]
    low = [g.binary("min", x, y) for x, y in ((a, c), (b, d))]
    return low + [g.binary("max", x, y) for x, y in ((a, c), (b, d))]


def _overlap(g: GraphBuilder, corners: list[Tensor], best: Tensor) -> Tensor:
    """`[images, classes, boxes]`: the intersection of each box with the best one, divided by their union; 0 where the
    intersection has no area."""
    images, count = corners[0].shape
    first = g.constant((np.arange(images) * count).reshape(images, 1, 1))
    index = g.add(best, first)
    own = [g.gather(g.reshape(x, (images * count,)), index, 0) for x in corners]
    all_ = [g.reshape(x, (images, 1, count)) for x in corners]
    low = [g.binary("max", x, y) for x, y in zip(own[:2], all_[:2], strict=True)]
    high = [g.binary("min", x, y) for x, y in zip(own[2:], all_[2:], strict=True)]
    sides = [g.binary("max", g.sub(y, x), 0) for x, y in zip(low, high, strict=True)]
    shared = g.mul(sides[0], sides[1])
    areas = [g.mul(g.sub(each[2], each[0]), g.sub(each[3], each[1])) for each in (own, all_)]
    union = g.sub(g.add(areas[0], areas[1]), shared)
    return g.where(g.binary("gt", shared, 0), g.div(shared, union), g.scalar(0, shared))
