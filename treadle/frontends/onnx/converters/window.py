"""The attributes of sliding windows, shared by convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.frontends.common.extent import Extent, Symbolic
from treadle.frontends.common.window import Window, covered_extent
from treadle.frontends.onnx.node import Node

LARGEST = (1 << 31) - 1
"""The largest number in a window's attributes: products with extents stay within 64 bits."""
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def read_window(node: Node, shape: Sequence[int], kernel: Sequence[int], transposed: bool = False) -> Window:
    """The window of a node over an input `[N, C, spatial...]`, with pads for `auto_pad`.

    transposed: the pads of SAME_* follow from the output's shape, and are left to the caller.
    """
    rank = len(shape) - 2
    if rank < 1 or len(kernel) != rank:
        raise node.error(f"a window {tuple(kernel)} over an input of shape {tuple(shape)}", f"{max(rank, 1)} extents")
    strides = node.ints_of_length("strides", rank, 1)
    dilations = node.ints_of_length("dilations", rank, 1)
    pads = node.ints_of_length("pads", 2 * rank, 0)
    auto_pad = node.string("auto_pad", "NOTSET", AUTO_PADS)
    if min(strides) < 1 or min(dilations) < 1 or min(kernel) < 1:
        raise node.error(f"strides {strides}, dilations {dilations}, kernel {list(kernel)}", "numbers from 1 upwards")
    largest = max(*strides, *dilations, *kernel, *map(abs, pads))
    if largest > LARGEST:
        raise node.error(f"a window with an attribute of {largest}", f"at most {LARGEST}")
    if auto_pad == "VALID":
        pads = [0] * (2 * rank)
    window = Window(tuple(kernel), tuple(strides), tuple(pads), tuple(dilations), auto_pad)
    return _padded_alike(window, shape[2:]) if window.is_same and not transposed else window


def _padded_alike(window: Window, extents: Sequence[Symbolic]) -> Window:
    """The window of SAME_*, padded such that there are `ceil(extent / stride)` positions.

    What is padded follows from how many elements the last window has: 1 to `stride`. Where only what is padded behind
    depends on the extents of a call, the end gets the most of all calls, which leaves the number of positions as it is
    in each.
    """
    before, after = [0] * window.rank, [0] * window.rank
    covered: dict[int, Symbolic] = {}
    for d, (extent, stride) in enumerate(zip(extents, window.strides, strict=True)):
        rest = extent % stride
        # Of all remainders these two pad the most and the least.
        rests = (1, stride) if isinstance(rest, Extent) else (int(rest) or stride,)
        totals = [max(window.reach(d) - each, 0) for each in rests]
        halves = {total // 2 if window.is_upper else total - total // 2 for total in totals}
        if len(halves) > 1:
            covered[d] = covered_extent(extent, window.kernel[d], stride, window.dilations[d])
            continue
        before[d] = halves.pop()
        after[d] = max(totals) - before[d]
    return replace(window, pads=(*before, *after), covered=covered)


__all__ = ["AUTO_PADS", "LARGEST", "read_window"]
