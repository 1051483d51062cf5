"""Elements at indices that are data."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.definition import Misfit
from treadle.dialects.graph.dtypes import integer_limits
from treadle.dialects.scalar import is_unsigned
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import MERGED, Extent, bounds_of
from treadle.frontends.common.reserve import Reserves


def gather_along(
    node: Reserves, g: GraphBuilder, data: Tensor, indices: Tensor, axis: int, laid_out: bool = False
) -> Tensor:
    """`data[..., indices[i, ..., k], ...]`: the index at each position replaces its own coordinate along the axis.

    laid_out: indices are positions in the data's largest shape, from the front
    """
    indices = wide_enough(g, indices, data)
    strides = [prod(bounds_of(data.shape[d + 1 :])) for d in range(data.rank)]
    shape = bounds_of(indices.shape)
    node.reserve(indices.shape, np.dtype(np.int64))
    base = np.zeros(shape, np.int64)
    for d in set(range(data.rank)) - {axis}:
        steps = np.arange(shape[d]) * strides[d]
        base += steps.reshape([-1 if n == d else 1 for n in range(data.rank)])
    along = g.mul(inside(g, indices, data.shape[axis], laid_out), strides[axis])
    linear = g.add(along, g.constant(base.astype(indices.dtype), indices.shape, laid_out=True))
    return g.gather(g.reshape(data, (prod(data.shape),)), linear, 0, laid_out=True)


def counted_from_front(g: GraphBuilder, indices: Tensor, extent: int) -> Tensor:
    """Indices of which negative ones count from the end."""
    if is_unsigned(indices.element):
        return indices
    return g.where(g.binary("lt", indices, 0), g.add(indices, extent), indices)


def inside(g: GraphBuilder, indices: Tensor, extent: int, laid_out: bool = False) -> Tensor:
    """Indices of one dimension as `graph.gather` takes them: negative ones from the end, clamped to the nearest;
    VerifyException for a merged dimension, where positions of the largest shape are none of a call, unless they are
    `laid_out`."""
    if isinstance(extent, Extent) and extent.factors and not laid_out:
        raise Misfit(f"indices into the merged dimension {extent}", MERGED)
    if isinstance(extent, Extent) and _is_inside(indices, extent):
        return indices
    return g.binary("max", g.binary("min", counted_from_front(g, indices, extent), extent - 1), 0)


def _is_inside(indices: Tensor, extent: Extent) -> bool:
    """Whether known indices lie inside a symbolic extent in every call: below its smallest, or not beyond their own
    position along a dimension of that extent."""
    array = indices.array
    if array is None or np.less(array, 0).any():
        return False
    if array.size == 0 or array.max() < extent.lowest:
        return True
    positions = np.indices(array.shape, sparse=True)
    pairs = zip(indices.shape, positions, strict=True)
    return any(isinstance(e, Extent) and e == extent and bool((array <= p).all()) for e, p in pairs)


def largest_index(indices: Tensor) -> int:
    """The largest index that the type of indices can represent; VerifyException for what are no integers."""
    if indices.dtype.kind not in "iu":
        raise VerifyException(f"indices of {indices.element}: expected integers")
    return integer_limits(indices.element)[1]


def wide_enough(g: GraphBuilder, indices: Tensor, data: Tensor) -> Tensor:
    """Indices in a type that can represent every linear position in the data."""
    return indices if prod(bounds_of(data.shape)) <= largest_index(indices) else g.cast(indices, i64)


__all__ = ["counted_from_front", "gather_along", "inside", "largest_index", "wide_enough"]
