"""Normalisations."""

from __future__ import annotations

from math import prod

import numpy as np

from treadle.dialects.graph import BatchNormOp, LayerNormOp, PoolOp
from treadle.frontends.common import normalization
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.window import LARGEST
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("BatchNormalization", since=7)
def batch_norm(node: Node, g: GraphBuilder) -> Tensor | list[Tensor]:
    """By the running statistics, or with `training_mode` by those of the batch, by which the running ones move."""
    if node.flag("training_mode"):
        return _batch_norm_of_training(node, g, node.float("epsilon", 1e-5), node.float("momentum", 0.9))
    return by_running_statistics(node, g)


def by_running_statistics(node: Node, g: GraphBuilder) -> Tensor:
    """The normalisation of inference."""
    node.ignore("momentum")
    if not node.flag("spatial", True):
        raise node.error("spatial is 0", "spatial = 1: statistics for each channel")
    x, epsilon = node.input(), node.float("epsilon", 1e-5)
    node.only_output()
    parameters = [g.cast(node.input(n), x.element) for n in range(1, 5)]
    return g.emit(lambda v: BatchNormOp(*v, epsilon=epsilon), x, *parameters)


def _batch_norm_of_training(node: Node, g: GraphBuilder, epsilon: float, momentum: float) -> list[Tensor]:
    """The result, and the running mean and variance after this batch."""
    x = node.input()
    if x.rank < 2:
        raise node.error(f"an input of rank {x.rank}", "rank 2 and more")
    wide, dims = g.widened(x), [d for d in range(x.rank) if d != 1]
    mean = g.reduce("mean", wide, dims, keep=True)
    centred = g.sub(wide, mean)
    variance = g.reduce("mean", g.mul(centred, centred), dims, keep=True)
    normal = g.div(centred, g.unary("sqrt", g.add(variance, epsilon)))
    results = [g.cast(normalization.affine(g, normal, node.input(1), node.input(2)), x.element)]
    for index, batch in ((3, mean), (4, variance)):
        running = node.input(index)
        own = g.reshape(g.cast(batch, running.element), running.shape)
        results.append(g.add(g.mul(running, momentum), g.mul(own, 1 - momentum)))
    return results


@converts("LayerNormalization", since=17)
def layer_norm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Over the dimensions from `axis` on; the statistics are computed separately if they are outputs.

    Those of float16 are float32, as `stash_type` says.
    """
    node.ignore("stash_type")
    x = node.input()
    dim = node.axis(node.int("axis", -1), x.rank)
    rows, epsilon = x.shape[dim:], node.float("epsilon", 1e-5)
    bias = node.optional(2) or g.constant(np.broadcast_to(np.array(-0.0, x.dtype), rows))
    scale, bias = g.broadcast(node.input(1), rows), g.broadcast(bias, rows)
    y = g.emit(lambda v: LayerNormOp(v[0], v[1], v[2], dim, epsilon), x, scale, bias)
    if not any(node.used[1:]):
        return [y]
    dims = range(dim, x.rank)
    wide = g.widened(x)
    mean = g.reduce("mean", wide, dims, keep=True)
    centred = g.sub(wide, mean)
    variance = g.reduce("mean", g.mul(centred, centred), dims, keep=True)
    return [y, mean, g.unary("reciprocal", g.unary("sqrt", g.add(variance, epsilon)))]


@converts("RMSNormalization", since=23)
@converts("SimplifiedLayerNormalization")
def rms_norm(node: Node, g: GraphBuilder) -> Tensor:
    """`x / sqrt(mean(x^2) + epsilon) * scale` over the dimensions from `axis` on; the second is ONNX Runtime's name."""
    node.only_output()
    node.ignore("stash_type")
    x = node.input()
    dims = range(node.axis(node.int("axis", -1), x.rank), x.rank)
    return normalization.rms_norm(g, x, dims, node.input(1), node.float("epsilon", 1e-5))


@converts("InstanceNormalization", since=6)
def instance_norm(node: Node, g: GraphBuilder) -> Tensor:
    """Each channel of each sample by its own statistics."""
    x = node.input()
    if x.rank < 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3 and more")
    return normalization.instance_norm(g, x, node.input(1), node.input(2), node.float("epsilon", 1e-5))


@converts("GroupNormalization", since=21)
def group_norm(node: Node, g: GraphBuilder) -> Tensor:
    """Each group of channels of each sample by its own statistics."""
    node.ignore("stash_type")
    x, groups = node.input(), node.int("num_groups", 0)
    if groups < 1 or x.rank < 3 or x.shape[1] % groups:
        raise node.error(f"num_groups {groups} for an input of shape {x.shape}", "a divisor of the channels")
    return normalization.group_norm(g, x, groups, node.input(1), node.input(2), node.float("epsilon", 1e-5))


@converts("MeanVarianceNormalization", since=9)
def mean_variance_norm(node: Node, g: GraphBuilder) -> Tensor:
    """`(x - mean) / (deviation + 1e-9)` over the axes."""
    x = node.input()
    axes = node.ints("axes")
    dims = node.axes([0, 2, 3] if axes is None else axes, x.rank)
    wide = g.widened(x)
    centred = g.sub(wide, g.reduce("mean", wide, dims, keep=True))
    variance = g.reduce("mean", g.mul(centred, centred), dims, keep=True)
    return g.cast(g.div(centred, g.add(g.unary("sqrt", variance), float(np.float32(1e-9)))), x.element)


@converts("LpNormalization")
def lp_norm(node: Node, g: GraphBuilder) -> Tensor:
    """`x` divided by the sum of magnitudes, or by the root of the sum of squares; what is all zeros stays so."""
    x, p = node.input(), node.int("p", 2)
    dims = [node.axis(node.int("axis", -1), x.rank)]
    if p not in (1, 2):
        raise node.error(f"p is {p}", "p = 1 or p = 2")
    wide = g.widened(x)
    size = g.reduce("add", g.unary("abs", wide) if p == 1 else g.mul(wide, wide), dims, keep=True)
    size = size if p == 1 else g.unary("sqrt", size)
    zero = g.binary("eq", size, 0.0)
    return g.cast(g.div(wide, g.where(zero, g.scalar(1.0, wide), size)), x.element)


@converts("LRN")
def local_response_norm(node: Node, g: GraphBuilder) -> Tensor:
    """`x / (bias + alpha / size * sum of x^2 over size neighbouring channels)^beta`.

    The sum is an average pool along the channels whose padding counts as zeros.
    """
    x, size = node.input(), node.int("size", 0)
    if not 1 <= size <= LARGEST or x.rank < 3:
        raise node.error(f"size {size} for an input of rank {x.rank}", f"size from 1 to {LARGEST} and rank 3 or more")
    wide = g.widened(x)
    planes = g.reshape(g.mul(wide, wide), (x.shape[0], 1, x.shape[1], prod(x.shape[2:])))
    before = (size - 1) // 2
    pads = (before, 0, size - 1 - before, 0)
    mean = g.emit(lambda v: PoolOp("avg", v[0], (size, 1), (1, 1), pads, (1, 1), count_pad=True), planes)
    base = g.add(g.mul(g.reshape(mean, x.shape), node.float("alpha", 1e-4)), node.float("bias", 1.0))
    return g.cast(g.div(wide, g.binary("pow", base, node.float("beta", 0.75))), x.element)
