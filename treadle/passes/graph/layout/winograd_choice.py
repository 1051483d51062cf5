"""Whether a convolution is faster directly or in tiles, by the work that each takes.

The unit of work is the time of a term of a product of tiles. What else takes how long was fitted to a run of
`python -m benchmarks.winograd` on a Zen 3 with AVX2, two threads (`benchmarks/results/winograd-2026-11-23.json`). Of
the ten geometries of 3x3 filters and stride 1 in ResNet-50 and Inception-V3, F(2x2) is faster for nine, all of which
are chosen, and the tenth takes as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from treadle.dialects.graph import ConvOp
from treadle.dialects.graph.winograd_matrices import KERNEL, OUTPUTS, filtering
from treadle.passes.graph.rewriting import shape_of

_DIRECT = 1.4
"""A term of a direct convolution, whose windows lie in several rows of an image and overlap."""
_TRANSFORM: Mapping[int, float] = {2: 38.0, 4: 60.0}
"""An element of a tile of an image, or of products, that is transformed, written and read again, by the outputs of a
tile: tiles of large images leave the second cache in between."""
_FILTER = 12.0
"""An element of the filters, which come from memory once a call."""


def outputs_by_work(op: ConvOp, most: int) -> int | None:
    """The outputs, at most so many, along a dimension of the tiles that take the least work, for a convolution that has
    tiles; None where that is the direct way."""
    ways = [None, *(outputs for outputs in OUTPUTS if outputs <= most)]
    return min(ways, key=lambda outputs: estimated_work(op, outputs))


def estimated_work(op: ConvOp, outputs: int | None) -> float:
    """The work of a convolution of 3x3 filters: directly, or in tiles of some outputs."""
    (n, oc, *spatial), ic = op.shape, shape_of(op.w)[1]
    if outputs is None:
        return KERNEL**2 * oc * ic * (_DIRECT * n * prod(spatial) + _FILTER)
    products = filtering(outputs).tile ** 2
    tiles = n * prod(ceil(extent / outputs) for extent in spatial)
    return products * (oc * ic * (tiles + _FILTER) + _TRANSFORM[outputs] * tiles * (ic + oc))


__all__ = ["estimated_work", "outputs_by_work"]
