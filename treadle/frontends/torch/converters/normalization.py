"""Normalisations, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import f32, f64

from treadle.dialects.graph import BatchNormOp, LayerNormOp
from treadle.dialects.graph.dtypes import epsilon
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.normalization import group_norm, instance_norm, rms_norm
from treadle.frontends.common.softmax import softmax_along
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


def _parameters(c: Call, g: GraphBuilder, x: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Scale and bias, which default to what changes nothing."""
    found: list[Tensor] = []
    for name, neutral in (("weight", 1.0), ("bias", -0.0)):
        given = c.optional(name)
        known = g.constant(np.broadcast_to(np.array(neutral, x.dtype), shape)) if given is None else given
        found.append(g.cast(known, x.element))
    return found[0], found[1]


@converts("native_layer_norm.default")
def layer_norm(c: Call, g: GraphBuilder) -> list[Tensor]:
    """Over the last dimensions; the statistics are not results."""
    x, shape = c.tensor("input"), c.ints("normalized_shape")
    scale, bias = _parameters(c, g, x, shape)
    dim, eps = x.rank - len(shape), float(c.value("eps"))
    return [g.emit(lambda v: LayerNormOp(v[0], v[1], v[2], dim, eps), x, scale, bias)]


@converts("rms_norm.default")
def root_mean_square_norm(c: Call, g: GraphBuilder) -> Tensor:
    """Over the last dimensions; without `eps`, the epsilon of the type."""
    x, shape, eps = c.tensor("input"), c.ints("normalized_shape"), c.value("eps")
    if eps is None and x.element not in (f32, f64):
        raise c.error(f"eps is None, of {x.element}", "a number")
    weight = c.optional("weight")
    scale = g.constant(np.broadcast_to(np.ones((), x.dtype), shape)) if weight is None else weight
    dims = range(x.rank - len(shape), x.rank)
    return rms_norm(g, x, dims, scale, epsilon(x.dtype) if eps is None else float(eps))


@converts("_native_batch_norm_legit_no_training.default")
def batch_norm(c: Call, g: GraphBuilder) -> list[Tensor]:
    """By the running statistics."""
    x, eps = c.tensor("input"), float(c.value("eps"))
    scale, bias = _parameters(c, g, x, (x.shape[1],))
    mean, variance = (g.cast(c.tensor(f"running_{name}"), x.element) for name in ("mean", "var"))
    return [g.emit(lambda v: BatchNormOp(*v, epsilon=eps), x, scale, bias, mean, variance)]


@converts("_native_batch_norm_legit.no_stats")
def norm_by_own_statistics(c: Call, g: GraphBuilder) -> list[Tensor]:
    """What an instance normalisation consists of: each channel of one sample by its own statistics."""
    x = c.tensor("input")
    if x.rank < 3 or x.shape[0] != 1:
        raise c.error(f"statistics of a batch of shape {x.shape}", "one sample of rank 3 and more")
    return [instance_norm(g, x, *_parameters(c, g, x, (x.shape[1],)), float(c.value("eps")))]


@converts("native_group_norm.default")
def group_normalization(c: Call, g: GraphBuilder) -> list[Tensor]:
    """Each group of channels of each sample by its own statistics."""
    x = c.tensor("input")
    rows = g.reshape(x, (*x.shape, 1)) if x.rank == 2 else x
    scale, bias = _parameters(c, g, x, (x.shape[1],))
    return [g.reshape(group_norm(g, rows, c.int("group"), scale, bias, float(c.value("eps"))), x.shape)]


@converts("_softmax.default", "_log_softmax.default")
def softmax(c: Call, g: GraphBuilder) -> Tensor:
    """Along one dimension, or its logarithm."""
    x = g.cast(c.tensor(), c.element)
    if x.rank == 0:
        return g.reshape(softmax_along(g, g.reshape(x, (1,)), 0, c.name.startswith("_log")), ())
    return softmax_along(g, x, c.dim(c.int("dim"), x.rank), c.name.startswith("_log"))
