"""Whether a convolution is faster directly or in tiles, by the work that each takes.

The unit of work is the time of a term of a product. What else takes how long was fitted to a run of
`python -m benchmarks.winograd` on a Xeon with AVX-512 (2 MiB of second cache a core), two threads
(`benchmarks/results/winograd-2026-11-24.json`). Of the ten geometries of 3x3 filters and stride 1 in ResNet-50 and
Inception-V3, F(2x2) is faster for seven, all of which are chosen, and takes 1.3 to 2 times as long for the others. A
Zen 3 with AVX2, where a convolution was three kernels, took 0.9 of the direct time for one of these three, and 0.6 for
another (`winograd-2026-11-23.json`); it was not measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from treadle.dialects.graph import ConvOp
from treadle.dialects.graph.winograd import KERNEL, OUTPUTS, filtering
from treadle.passes.graph.rewriting import shape_of

_DIRECT = 1.03
"""A term of a direct convolution, whose windows lie in several rows of an image and overlap."""
_TRANSFORM: Mapping[int, float] = {2: 24.0, 4: 60.0}
"""An element of a tile of an image, or of products, that is transformed, written and read again, by the outputs of a
tile: tiles of large images leave the second cache in between."""
_FILTER, _FILTER_OF_TILES = 7.0, 30.0
"""An element of the filters, which come from memory once a call; few terms use one of those of tiles meanwhile."""


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
    return products * (oc * ic * (tiles + _FILTER_OF_TILES) + _TRANSFORM[outputs] * tiles * (ic + oc))


__all__ = ["estimated_work", "outputs_by_work"]
