"""Other shapes of the same elements: Reshape, Squeeze, Transpose, Expand, Tile, DepthToSpace ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic
from treadle.frontends.common.window import Window, covered_extent, padded
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# Pad: attributes until opset 10, inputs since.

MODES = ("constant", "reflect", "edge")
LATER_MODES = (*MODES, "wrap")
"""Those since opset 19."""


@converts("Pad", since=2)
def pad_attributes(node: Node, g: GraphBuilder) -> Tensor:
    """Pads and value as attributes."""
    x = node.input()
    pads = node.ints_of_length("pads", 2 * x.rank, 0)
    return padded(g, x, node.string("mode", "constant", MODES), pads, g.scalar(node.float("value", 0.0), x))


@converts("Pad", since=11)
def pad_inputs(node: Node, g: GraphBuilder) -> Tensor:
    """Pads, value and (since opset 18) the axes that they belong to as inputs."""
    x = node.input()
    axes = node.axes(node.known_ints(3, "axes"), x.rank) if node.optional(3) is not None else list(range(x.rank))
    given = node.known_ints(1, "pads")
    if len(given) != 2 * len(axes):
        raise node.error(f"pads {given} for {len(axes)} axes", f"{2 * len(axes)} numbers")
    pads = [0] * (2 * x.rank)
    for n, axis in enumerate(axes):
        pads[axis], pads[axis + x.rank] = given[n], given[n + len(axes)]
    value = node.optional(2)
    value = g.scalar(0, x) if value is None else g.reshape(value, ())
    modes = LATER_MODES if node.opset >= 19 else MODES
    return padded(g, x, node.string("mode", "constant", modes), pads, value)


# The attributes of sliding windows, shared by convolutions and pools.

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


@converts("Reshape", since=5)
def reshape(node: Node, g: GraphBuilder) -> Tensor:
    """An extent of 0 copies the operand's (unless `allowzero`), one of -1 is what remains."""
    x = node.input()
    wanted = node.known_ints(1, "the shape")
    return g.reshape(x, _resolved(node, x.shape, wanted, node.flag("allowzero")))


def _resolved(node: Node, shape: Sequence[int], wanted: list[int], allow_zero: bool) -> list[int]:
    text = f"{list(shape)} does not reshape to {wanted}"
    if wanted.count(-1) > 1 or any(v < -1 for v in wanted):
        raise node.error(text, "extents from 0 upwards, and -1 at most once")
    if not allow_zero:
        if any(v == 0 and n >= len(shape) for n, v in enumerate(wanted)):
            raise node.error(text, f"0 for one of the {len(shape)} dimensions that there are")
        wanted = [shape[n] if v == 0 else v for n, v in enumerate(wanted)]
    known = prod(v for v in wanted if v != -1)
    if -1 not in wanted:
        return wanted
    if known == 0 or prod(shape) % known:
        raise node.error(text, f"extents whose product divides {prod(shape)}")
    return [prod(shape) // known if v == -1 else v for v in wanted]


@converts("Flatten")
def flatten(node: Node, g: GraphBuilder) -> Tensor:
    """Two dimensions, divided before `axis`."""
    x = node.input()
    axis = node.int("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank)
    return g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _squeezed(node: Node, g: GraphBuilder, axes: Sequence[int] | None) -> Tensor:
    x = node.input()
    # A symbolic extent raises, unless it is above 1 in every call.
    dims = [d for d, e in enumerate(x.shape) if e and not e > 1] if axes is None else node.axes(axes, x.rank)
    for d in dims:
        if x.shape[d] != 1:
            raise node.error(f"axis {d} of shape {list(x.shape)} has {x.shape[d]} elements", "axes of extent 1")
    return g.reshape(x, [e for d, e in enumerate(x.shape) if d not in dims])


@converts("Squeeze")
def squeeze_attribute(node: Node, g: GraphBuilder) -> Tensor:
    """Axes as an attribute."""
    return _squeezed(node, g, node.ints("axes"))


@converts("Squeeze", since=13)
def squeeze_input(node: Node, g: GraphBuilder) -> Tensor:
    """Axes as an input."""
    return _squeezed(node, g, None if node.optional(1) is None else node.known_ints(1, "axes"))


def _unsqueezed(node: Node, g: GraphBuilder, axes: Sequence[int]) -> Tensor:
    x = node.input()
    rank = x.rank + len(axes)
    dims = node.axes(axes, rank)
    rest = iter(x.shape)
    return g.reshape(x, [1 if d in dims else next(rest) for d in range(rank)])


@converts("Unsqueeze")
def unsqueeze_attribute(node: Node, g: GraphBuilder) -> Tensor:
    """Axes as an attribute."""
    return _unsqueezed(node, g, node.ints("axes") or [])


@converts("Unsqueeze", since=13)
def unsqueeze_input(node: Node, g: GraphBuilder) -> Tensor:
    """Axes as an input."""
    return _unsqueezed(node, g, node.known_ints(1, "axes"))


@converts("Transpose")
def transpose(node: Node, g: GraphBuilder) -> Tensor:
    """Without `perm` the dimensions are reversed."""
    x = node.input()
    perm = node.ints("perm")
    return g.transpose(x, list(range(x.rank))[::-1] if perm is None else perm)


@converts("Expand", since=8)
def expand(node: Node, g: GraphBuilder) -> Tensor:
    """Both shapes are broadcast: an extent of 1 in the target keeps the operand's."""
    x = node.input()
    return g.broadcast(x, broadcast_shapes([x.shape, node.known_ints(1, "the shape")]))


@converts("Tile", since=6)
def tile(node: Node, g: GraphBuilder) -> Tensor:
    """A new dimension before each, repeated, and then merged with it."""
    x = node.input()
    repeats = node.known_ints(1, "repeats")
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise node.error(f"repeats {repeats} of a tensor of rank {x.rank}", f"{x.rank} numbers from 0 upwards")
    if all(r == 1 for r in repeats):
        return x
    split = g.reshape(x, [v for e in x.shape for v in (1, e)])
    spread = g.broadcast(split, [v for r, e in zip(repeats, x.shape, strict=True) for v in (r, e)])
    return g.reshape(spread, [r * e for r, e in zip(repeats, x.shape, strict=True)])


def _image(node: Node) -> tuple[Tensor, int]:
    x, block = node.input(), node.int("blocksize", 0)
    if x.rank != 4 or block < 1:
        raise node.error(f"blocksize {block} of a tensor of rank {x.rank}", "blocksize from 1 upwards and rank 4")
    return x, block


@converts("DepthToSpace")
def depth_to_space(node: Node, g: GraphBuilder) -> Tensor:
    """Blocks of channels become blocks of pixels."""
    x, b = _image(node)
    n, c, h, w = x.shape
    if c % (b * b):
        raise node.error(f"{c} channels", f"a multiple of {b * b}")
    if node.string("mode", "DCR", ("DCR", "CRD")) == "DCR":
        blocks = g.transpose(g.reshape(x, (n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = g.transpose(g.reshape(x, (n, c // (b * b), b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return g.reshape(blocks, (n, c // (b * b), h * b, w * b))


@converts("SpaceToDepth")
def space_to_depth(node: Node, g: GraphBuilder) -> Tensor:
    """Blocks of pixels become blocks of channels."""
    x, b = _image(node)
    n, c, h, w = x.shape
    if h % b or w % b:
        raise node.error(f"{h} by {w} pixels", f"multiples of {b}")
    depth_first = node.string("mode", "DCR", ("DCR", "CRD")) == "DCR"
    order = (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4)
    blocks = g.transpose(g.reshape(x, (n, c, h // b, b, w // b, b)), order)
    return g.reshape(blocks, (n, c * b * b, h // b, w // b))
