"""Sliding windows over extents that change: how a tensor is padded for them, by how much in each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic, least_of
from treadle.frontends.common.moving import at_positions


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial dimensions; `pads` lists the beginnings, then the ends.

    auto_pad: ONNX's rule for the pads; of an odd number of them SAME_UPPER has one more behind, others before
    covered:  for spatial dimensions whose padding depends on the call, which `pads` has not, the extent that the
        windows cover; what it has more than the tensor is padding
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    auto_pad: str = "NOTSET"
    covered: Mapping[int, Symbolic] = field(default_factory=dict[int, Symbolic])

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def is_same(self) -> bool:
        """Whether the number of positions is fixed, so that there is nothing to round."""
        return self.auto_pad.startswith("SAME")

    @property
    def is_upper(self) -> bool:
        return self.auto_pad == "SAME_UPPER"

    def reach(self, d: int) -> int:
        """The elements from the first to the last of a window, along a spatial dimension."""
        return self.dilations[d] * (self.kernel[d] - 1) + 1

    def along(self, d: int) -> Window:
        """The window of one spatial dimension."""
        pads = self.pads[d], self.pads[d + self.rank]
        covered = {0: self.covered[d]} if d in self.covered else {}
        return Window((self.kernel[d],), (self.strides[d],), pads, (self.dilations[d],), self.auto_pad, covered)

    def rounded_up(self) -> Window:
        """The window with as much padding behind as a number of positions that is rounded up needs.

        ceil((e + p) / s) positions of e elements with padding, of windows that reach r, are those of e + p + s - 1
        elements; the last one has to begin inside the input or the padding before it, however.
        """
        pads = list(self.pads)
        for d, stride in enumerate(self.strides):
            after = pads[d + self.rank]
            beyond = after + stride - self.reach(d)
            # The last window begins inside in every call, in some calls, or in none.
            rounded = after + stride - 1 if beyond <= 0 else self.reach(d) - 1 if beyond <= stride else after - 1
            pads[d + self.rank] = rounded
        return replace(self, pads=tuple(pads))

    def fitted(self, g: GraphBuilder, x: Tensor, value: float) -> tuple[Tensor, Window]:
        """A tensor with the padding that depends on the call, of a value, and the window without it."""
        for d, covered in self.covered.items():
            start = negated(g, half(g, covered - x.shape[d + 2], not self.is_upper))
            x = at_positions(g, x, d + 2, start, covered, "constant", g.scalar(value, x))
        return x, replace(self, covered={})


def covered_extent(extent: Symbolic, kernel: int, stride: int, dilation: int) -> Symbolic:
    """What `ceil(extent / stride)` windows cover."""
    return ((extent + stride - 1) // stride - 1) * stride + dilation * (kernel - 1) + 1


def half(g: GraphBuilder, number: Symbolic, up: bool) -> Symbolic | Tensor:
    """Half of a number, rounded up or down; 0 in calls in which it is negative."""
    number = number + 1 if up else number
    if not isinstance(number, Extent) or least_of(number) >= 0:
        return max(number, 0) // 2
    return g.div(g.binary("max", g.numbers(number), 0), 2)


def negated(g: GraphBuilder, number: Symbolic | Tensor) -> Symbolic | Tensor:
    """A number times -1."""
    return g.unary("neg", number) if isinstance(number, Tensor) else -number


__all__ = ["Window", "covered_extent", "half", "negated"]
