"""DietCode's cost model: the throughput of a kernel on a shape, from that of one block.

Source: DietCode (MLSys 2022), section 4.2, equation (3): cost = f_MK(M) * f_OCC(P / M) * f_pad(P, M), throughput of
a program P of blocks M. As printed, f_pad = pad_by(P, M) / P is at least 1, and prefers kernels that pad more; here
it is P / pad_by(P, M), the part of the computed elements that is useful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log, prod

_UNMEASURED = 0.5
"""The coefficient k of f_OCC before there are measurements; assumed."""
_HALVINGS = 60


@dataclass(frozen=True)
class MicroKernel:
    """A kernel whose block computes a tile of the result.

    tile: extents, of the same dimensions as the shapes it is used for
    throughput: useful work a second while all cores are busy with whole tiles, f_MK
    """

    tile: tuple[int, ...]
    throughput: float

    def blocks(self, shape: Sequence[int]) -> int:
        """Tiles that cover a shape, P / M."""
        return prod(ceil(extent / size) for extent, size in zip(shape, self.tile, strict=True))

    def padding(self, shape: Sequence[int]) -> float:
        """f_pad: the part of what is computed that is useful, at most 1."""
        return prod(shape) / (self.blocks(shape) * prod(self.tile))

    def on(self, shape: Sequence[int], places: int, k: float = _UNMEASURED) -> float:
        """The throughput on a shape; `places`: blocks that run at once on the whole device."""
        return self.throughput * occupancy(self.blocks(shape), places, k) * self.padding(shape)


def busy(blocks: int, places: int) -> float:
    """The part of all places that is busy on average: blocks run in rounds, of which the last may be short."""
    return blocks / (ceil(blocks / places) * places)


def occupancy(blocks: int, places: int, k: float) -> float:
    """f_OCC: k * busy + 1 - k, which is 1 while all places are busy."""
    return k * busy(blocks, places) + 1 - k


def fitted_k(busies: Sequence[float], ratios: Sequence[float]) -> float:
    """The coefficient k, from 0 to 1, with which f_OCC is nearest to measured ratios: least squares of logarithms.

    busies, ratios: of some programs, `busy` and the measured throughput divided by f_MK * f_pad
    """
    if not busies:
        return _UNMEASURED

    def slope(k: float) -> float:
        """Half the derivative of the sum of squares."""
        values = [(k * each + 1 - k, each - 1, ratio) for each, ratio in zip(busies, ratios, strict=True)]
        return sum((log(value) - log(ratio)) * step / value for value, step, ratio in values)

    low, high = 0.0, 1 - 1e-9
    if slope(low) >= 0 or slope(high) <= 0:
        return low if slope(low) >= 0 else high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2


__all__ = ["MicroKernel", "busy", "fitted_k", "occupancy"]
