"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from treadle.dialects.graph import PoolOp
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.interpolation import Taps
from treadle.frontends.common.resize import interpolated
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


def _pooled(c: Call, g: GraphBuilder, kind: str, rank: int, dilations: Sequence[int], count_pad: bool) -> Tensor:
    """Windows over the last dimensions; an input without a batch gets one."""
    x = c.tensor()
    kernel, pads = c.ints("kernel_size", rank), c.ints("padding", rank) * 2
    strides = c.ints("stride", rank) or kernel
    batched = x if x.rank == rank + 2 else g.reshape(x, (1, *x.shape))
    ceil = c.flag("ceil_mode")
    lists = (kernel, strides, pads, dilations)
    y = g.emit(lambda v: PoolOp(kind, v[0], *lists, ceil, count_pad), batched)
    return g.reshape(y, c.shape)


@converts("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(c: Call, g: GraphBuilder) -> list[Tensor]:
    """The positions are not results."""
    rank = int(c.name[8])
    return [_pooled(c, g, "max", rank, c.ints("dilation", rank), False)]


@converts("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(c: Call, g: GraphBuilder) -> Tensor:
    """Padding counts as zeros with `count_include_pad`, else not at all."""
    rank = int(c.name[8])
    divisor = c.arguments.get("divisor_override")
    if divisor is None:
        return _pooled(c, g, "avg", rank, [1] * rank, c.flag("count_include_pad"))
    if c.flag("ceil_mode"):
        raise c.error("divisor_override with ceil_mode", "one of them")
    size = prod(c.ints("kernel_size", rank))
    return g.mul(_pooled(c, g, "avg", rank, [1] * rank, True), size / divisor)


def _windows(extent: int, size: int) -> list[range]:
    """The elements of each window of an adaptive pooling."""
    return [range(n * extent // size, -(-(n + 1) * extent // size)) for n in range(size)]


def _indices(windows: Sequence[range]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Those elements, the last one repeated in smaller windows."""
    most = max(map(len, windows))
    return np.array([[min(w.start + n, w.stop - 1) for n in range(most)] for w in windows])


@converts("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_average_pool(c: Call, g: GraphBuilder) -> Tensor:
    """Means over windows that divide each dimension about equally."""
    x, sizes = c.tensor(), c.ints("output_size")
    first = x.rank - len(sizes)
    if all(size == 1 for size in sizes):
        return g.reduce("mean", x, range(first, x.rank), keep=True)
    y = g.widened(x)
    for dim, size in enumerate(sizes, first):
        windows = _windows(int(x.shape[dim]), size)
        most = max(map(len, windows))
        weights = np.array([[(n < len(w)) / len(w) for n in range(most)] for w in windows])
        y = interpolated(g, y, dim, Taps(_indices(windows), weights, np.zeros(size, np.bool_)))
    return g.cast(y, x.element)


@converts("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(c: Call, g: GraphBuilder) -> list[Tensor]:
    """Maxima over such windows; the positions are not results."""
    y, sizes = c.tensor(), c.ints("output_size")
    for dim, size in enumerate(sizes, y.rank - len(sizes)):
        parts = g.gather(y, g.constant(_indices(_windows(int(y.shape[dim]), size))), dim)
        y = g.reduce("max", parts, [dim + 1], keep=False)
    return [y]
