"""Tensors of one value, and sequences of numbers."""

from __future__ import annotations

import numpy as np

from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


def _filled(c: Call, g: GraphBuilder, value: object) -> Tensor:
    scalar = np.asarray(value).astype(numpy_dtype(c.element))
    return g.constant(np.broadcast_to(scalar, c.shape))


@converts("full.default", "full_like.default")
def full(c: Call, g: GraphBuilder) -> Tensor:
    """One number everywhere; it is not expanded in memory."""
    return _filled(c, g, c.value("fill_value"))


@converts("scalar_tensor.default")
def scalar_tensor(c: Call, g: GraphBuilder) -> Tensor:
    """A number as a tensor."""
    return _filled(c, g, c.value("s"))


@converts("zeros.default", "zeros_like.default", "new_zeros.default")
def zeros(c: Call, g: GraphBuilder) -> Tensor:
    """Zeros."""
    return _filled(c, g, 0)


@converts("ones.default", "ones_like.default", "new_ones.default")
def ones(c: Call, g: GraphBuilder) -> Tensor:
    """Ones."""
    return _filled(c, g, 1)


@converts("empty_like.default", "new_empty.default")
def empty(c: Call, g: GraphBuilder) -> Tensor:
    """Zeros: what is in it is not defined."""
    return _filled(c, g, 0)


@converts("arange.start_step")
def arange(c: Call, g: GraphBuilder) -> Tensor:
    """Numbers at equal distances, of floats in float64."""
    steps = np.arange(c.shape[0])
    return g.constant((c.value("start") + steps * c.value("step")).astype(numpy_dtype(c.element)))
