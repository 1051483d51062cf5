"""Pools over windows, along dimensions whose extents change, too."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from treadle.dialects.graph import PoolOp
from treadle.dialects.graph.reduction import identity
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Symbolic, is_symbolic
from treadle.frontends.common.window import Window


def pooled(g: GraphBuilder, kind: str, x: Tensor, window: Window, ceil: bool, count_pad: bool) -> Tensor:
    """The largest elements (max) or means (avg) under a window; `ceil` rounds the number of positions up, and with
    `count_pad` padding counts as zeros.

    Along symbolic extents a number of positions that is rounded up is one of more padding, of which a mean counts none.
    """
    if not is_symbolic(x.shape[2:]):
        return _pool(g, kind, x, window, ceil, count_pad)
    padded = window.rounded_up() if ceil else window
    if kind == "max":
        fitted, padded = padded.fitted(g, x, identity("max", x.element))
        return _pool(g, kind, fitted, padded, False, False)
    mean = _mean(g, g.widened(x), padded)
    for d in range(window.rank):
        share = _counted(g, mean, x.shape[d + 2], window.along(d), padded.along(d), count_pad)
        if share is not None:
            mean = g.div(mean, g.reshape(share, (share.shape[2], *[1] * (window.rank - 1 - d))))
    return g.cast(mean, x.element)


def window_sums(g: GraphBuilder, x: Tensor, window: Window, ceil: bool) -> Tensor:
    """The sums under a window, with zeros as padding."""
    padded = window.rounded_up() if ceil else window
    return g.mul(_mean(g, x, padded), prod(window.kernel))


def _mean(g: GraphBuilder, x: Tensor, window: Window) -> Tensor:
    """Means under a window, whose padding counts as zeros."""
    x, window = window.fitted(g, x, 0)
    return _pool(g, "avg", x, window, False, True)


def _pool(g: GraphBuilder, kind: str, x: Tensor, window: Window, ceil: bool, count_pad: bool) -> Tensor:
    lists = (window.kernel, window.strides, window.pads, window.dilations)
    return g.emit(lambda v: PoolOp(kind, v[0], *lists, ceil, count_pad), x)


def _counted(
    g: GraphBuilder, mean: Tensor, extent: Symbolic, window: Window, padded: Window, count_pad: bool
) -> Tensor | None:
    """Which part of a window counts along a spatial dimension, at each position: the means of ones; None if all do.

    window: that of the dimension, with the padding that counts if `count_pad`
    padded: that of the mean, with padding that rounds up
    """
    if count_pad:
        before, after = window.pads[0], min(window.pads[1], padded.pads[1])
        extent, padded = extent + before + after, replace(padded, pads=(0, padded.pads[1] - after), covered={})
    if not any(padded.pads) and not padded.covered:
        return None
    return _mean(g, g.filled(1, mean.dtype, (1, 1, extent)), padded)


__all__ = ["pooled", "window_sums"]
