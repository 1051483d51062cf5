"""Normalisation by statistics of the tensor itself."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from treadle.frontends.common.builder import GraphBuilder, Tensor


def _standardised(g: GraphBuilder, x: Tensor, dims: Sequence[int], epsilon: float) -> Tensor:
    centred = g.sub(x, g.reduce("mean", x, dims, keep=True))
    variance = g.reduce("mean", g.mul(centred, centred), dims, keep=True)
    return g.div(centred, g.unary("sqrt", g.add(variance, epsilon)))


def instance_norm(g: GraphBuilder, x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Each channel of each sample by its own statistics."""
    normal = _standardised(g, g.widened(x), range(2, x.rank), epsilon)
    return g.cast(affine(g, normal, scale, bias), x.element)


def group_norm(g: GraphBuilder, x: Tensor, groups: int, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Each group of channels of each sample by its own statistics."""
    rows = g.widened(g.reshape(x, (x.shape[0], groups, prod(x.shape[1:]) // groups)))
    normal = g.reshape(_standardised(g, rows, [2], epsilon), x.shape)
    return g.cast(affine(g, normal, scale, bias), x.element)


def rms_norm(g: GraphBuilder, x: Tensor, dims: Sequence[int], scale: Tensor, epsilon: float) -> Tensor:
    """`x / sqrt(mean(x^2) + epsilon) * scale`, the mean over the dimensions."""
    wide, scale = g.widened(x), g.widened(scale)
    square = g.reduce("mean", g.mul(wide, wide), dims, keep=True)
    return g.cast(g.mul(g.div(wide, g.unary("sqrt", g.add(square, epsilon))), scale), x.element)


def affine(g: GraphBuilder, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """One scale and one bias for each channel."""
    shape = (x.shape[1], *[1] * (x.rank - 2))
    scale, bias = (g.cast(g.reshape(v, shape), x.element) for v in (scale, bias))
    return g.add(g.mul(x, scale), bias)


__all__ = ["affine", "group_norm", "instance_norm", "rms_norm"]
