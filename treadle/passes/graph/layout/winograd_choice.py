"""Whether a convolution is faster directly or in tiles, by the work that each takes."""

from __future__ import annotations

from math import ceil, prod

from treadle.dialects.graph import ConvOp
from treadle.dialects.graph.winograd_matrices import KERNEL, OUTPUTS, filtering
from treadle.passes.graph.layout.winograd import has_tiles
from treadle.passes.graph.rewriting import shape_of

_TRANSFORM = 14.0
"""Terms of a product that take as long as an element of a transformed tile, in or out."""
_WEIGHT = 6.0
"""Terms of a product that take as long as an element of the filters, which come from memory."""


def outputs_by_work(op: ConvOp, most: int) -> int | None:
    """The outputs, at most so many, along a dimension of the tiles that take the least work, for a convolution that has
    tiles; None where that is the direct way."""
    if not has_tiles(op):
        return None
    ways = [None, *(outputs for outputs in OUTPUTS if outputs <= most)]
    return min(ways, key=lambda outputs: estimated_work(op, outputs))


def estimated_work(op: ConvOp, outputs: int | None) -> float:
    """The work of a convolution of 3x3 filters in terms of products: directly, or in tiles of some outputs."""
    (n, oc, *spatial), ic = op.shape, shape_of(op.w)[1]
    if outputs is None:
        return KERNEL**2 * oc * ic * (n * prod(spatial) + _WEIGHT)
    products = filtering(outputs).tile ** 2
    tiles = n * prod(ceil(extent / outputs) for extent in spatial)
    return products * (oc * ic * (tiles + _WEIGHT) + _TRANSFORM * tiles * (ic + oc))


__all__ = ["estimated_work", "outputs_by_work"]
