"""The attributes of sliding windows, shared by convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.frontends.common.extent import Extent
from treadle.frontends.onnx.node import Node

LARGEST = (1 << 31) - 1
"""The largest number in a window's attributes: products with extents stay within 64 bits."""
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial dimensions; `pads` lists the beginnings, then the ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    auto_pad: str


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
    elif auto_pad != "NOTSET" and not transposed:
        pads = _same_pads(node, shape[2:], kernel, strides, dilations, auto_pad == "SAME_UPPER")
    return Window(tuple(kernel), tuple(strides), tuple(pads), tuple(dilations), auto_pad)


def _same_pads(
    node: Node,
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    upper: bool,
) -> list[int]:
    """Pads such that there are `ceil(extent / stride)` positions; an odd one goes to the end if `upper`.

    What is padded follows from how many elements the last window has: 1 to `stride`. Where that depends on the extents
    of a call, the end gets the most of all calls, which leaves the number of positions as it is in each.
    """
    before: list[int] = []
    after: list[int] = []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        reach, rest = dilation * (size - 1) + 1, extent % stride
        # Of all remainders these two pad the most and the least.
        rests = (1, stride) if isinstance(rest, Extent) else (int(rest) or stride,)
        totals = [max(reach - each, 0) for each in rests]
        halves = {total // 2 if upper else total - total // 2 for total in totals}
        if len(halves) > 1:
            what = f"the padding before {extent} elements, strides of {stride}, depends on the extents of a call"
            raise node.error(what, f"extents of one remainder by {stride}, such as multiples of it")
        half = halves.pop()
        before.append(half)
        after.append(max(totals) - half)
    return before + after


__all__ = ["AUTO_PADS", "LARGEST", "Window", "read_window"]
