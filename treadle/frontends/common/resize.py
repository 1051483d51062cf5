"""Interpolation along a dimension."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.interpolation import Taps

_FEW = 4
"""As many taps are added up one by one; more are a reduction."""


def interpolated(g: GraphBuilder, x: Tensor, axis: int, read: Taps) -> Tensor:
    """The weighted sum of the elements along a dimension."""
    count = read.indices.shape[1]
    weights = read.weights.astype(x.dtype)
    if count <= _FEW:
        y: Tensor | None = None
        for n in range(count):
            along = weights[:, n].reshape(-1, *[1] * (x.rank - axis - 1))
            term = g.mul(g.gather(x, g.constant(read.indices[:, n]), axis), g.constant(along))
            y = term if y is None else g.add(y, term)
        assert y is not None
        return y
    along = weights.reshape(*weights.shape, *[1] * (x.rank - axis - 1))
    terms = g.mul(g.gather(x, g.constant(read.indices), axis), g.constant(along))
    return g.reduce("add", terms, [axis + 1], keep=False)


__all__ = ["interpolated"]
