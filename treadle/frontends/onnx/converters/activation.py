"""Activation functions, softmax and normalisations."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import f64

from treadle.dialects.graph import ArgReductionOp, BatchNormOp, LayerNormOp, PoolOp
from treadle.dialects.graph.dtypes import integer_limits
from treadle.frontends.common import composed
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import softmax_along, softplus
from treadle.frontends.onnx.converters.elementwise import clip
from treadle.frontends.onnx.converters.reshape import LARGEST
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# Softmax, its logarithm, and Hardmax.


@converts("Softmax", "LogSoftmax")
def softmax_flattened(node: Node, g: GraphBuilder) -> Tensor:
    """Before opset 13 the dimensions from `axis` on are one."""
    x = node.input()
    axis = node.int("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank)
    log = node.op_type == "LogSoftmax"
    if axis == x.rank - 1:
        return softmax_along(g, x, axis, log)
    rows = g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return g.reshape(softmax_along(g, rows, 1, log), x.shape)


@converts("Softmax", "LogSoftmax", since=13)
def softmax(node: Node, g: GraphBuilder) -> Tensor:
    """Along one dimension."""
    x = node.input()
    return softmax_along(g, x, node.axis(node.int("axis", -1), x.rank), node.op_type == "LogSoftmax")


def _hardmax(g: GraphBuilder, x: Tensor, dim: int) -> Tensor:
    first = g.emit(lambda v: ArgReductionOp("max", v[0], dim, True, False), x)
    positions = g.reshape(g.iota(x.shape[dim]), (x.shape[dim], *[1] * (x.rank - dim - 1)))
    return g.where(g.binary("eq", first, positions), g.scalar(1, x), g.scalar(0, x))


@converts("Hardmax")
def hardmax_flattened(node: Node, g: GraphBuilder) -> Tensor:
    """Before opset 13 the dimensions from `axis` on are one."""
    x = node.input()
    axis = node.int("axis", 1)
    axis = axis if axis == x.rank else node.axis(axis, x.rank)
    rows = g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return g.reshape(_hardmax(g, rows, 1), x.shape)


@converts("Hardmax", since=13)
def hardmax(node: Node, g: GraphBuilder) -> Tensor:
    """1 for the first largest element along a dimension, else 0."""
    x = node.input()
    return _hardmax(g, x, node.axis(node.int("axis", -1), x.rank))


# Normalisations.


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
    results = [g.cast(composed.affine(g, normal, node.input(1), node.input(2)), x.element)]
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
    return composed.rms_norm(g, x, dims, node.input(1), node.float("epsilon", 1e-5))


@converts("InstanceNormalization", since=6)
def instance_norm(node: Node, g: GraphBuilder) -> Tensor:
    """Each channel of each sample by its own statistics."""
    x = node.input()
    if x.rank < 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3 and more")
    return composed.instance_norm(g, x, node.input(1), node.input(2), node.float("epsilon", 1e-5))


@converts("GroupNormalization", since=21)
def group_norm(node: Node, g: GraphBuilder) -> Tensor:
    """Each group of channels of each sample by its own statistics."""
    node.ignore("stash_type")
    x, groups = node.input(), node.int("num_groups", 0)
    if groups < 1 or x.rank < 3 or x.shape[1] % groups:
        raise node.error(f"num_groups {groups} for an input of shape {x.shape}", "a divisor of the channels")
    return composed.group_norm(g, x, groups, node.input(1), node.input(2), node.float("epsilon", 1e-5))


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


# Activation functions, written with unary, binary and where.


def _bounded(g: GraphBuilder, x: Tensor, low: float, high: float) -> Tensor:
    return clip(g, x, g.scalar(low, x), g.scalar(high, x))


def _negative_part(g: GraphBuilder, x: Tensor, negative: Tensor) -> Tensor:
    """`x < 0 ? negative : x`."""
    return g.where(g.binary("lt", x, 0), negative, x)


def _exp_minus_one(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.sub(g.unary("exp", x), 1)


@converts("HardSigmoid", since=6)
def hard_sigmoid(node: Node, g: GraphBuilder) -> Tensor:
    """`max(0, min(1, alpha * x + beta))`."""
    x = node.input()
    line = g.add(g.mul(x, node.float("alpha", 0.2)), node.float("beta", 0.5))
    return _bounded(g, line, 0, 1)


@converts("HardSwish", since=14)
def hard_swish(node: Node, g: GraphBuilder) -> Tensor:
    """`x * max(0, min(1, x / 6 + 0.5))`."""
    x = node.input()
    return g.mul(x, _bounded(g, g.add(g.mul(x, 1 / 6), 0.5), 0, 1))


@converts("LeakyRelu", since=6)
def leaky_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * x : x`."""
    x = node.input()
    return _negative_part(g, x, g.mul(x, node.float("alpha", 0.01)))


@converts("PRelu", since=7)
def p_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? slope * x : x`, the slope broadcast to x."""
    x = node.input(0)
    return _negative_part(g, x, g.mul(x, node.input(1)))


@converts("ThresholdedRelu", since=10)
def thresholded_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x > alpha ? x : 0`."""
    x = node.input()
    return g.where(g.binary("gt", x, node.float("alpha", 1.0)), x, g.scalar(0, x))


@converts("Elu", since=6)
def elu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * (exp(x) - 1) : x`."""
    x = node.input()
    return _negative_part(g, x, g.mul(_exp_minus_one(g, x), node.float("alpha", 1.0)))


@converts("Celu", since=12)
def celu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * (exp(x / alpha) - 1) : x`."""
    x, alpha = node.input(), node.float("alpha", 1.0)
    return _negative_part(g, x, g.mul(_exp_minus_one(g, g.div(x, alpha)), alpha))


@converts("Selu", since=6)
def selu(node: Node, g: GraphBuilder) -> Tensor:
    """`gamma * (x > 0 ? x : alpha * (exp(x) - 1))`."""
    x = node.input()
    alpha, gamma = (
        node.float("alpha", 1.67326319217681884765625),
        node.float("gamma", 1.05070102214813232421875),
    )
    return g.mul(_negative_part(g, x, g.mul(_exp_minus_one(g, x), alpha)), gamma)


@converts("Gelu", since=20)
def gelu(node: Node, g: GraphBuilder) -> Tensor:
    """Exact, or with its tanh approximation."""
    tanh = node.string("approximate", "none", ("none", "tanh")) == "tanh"
    return g.unary("gelu_tanh" if tanh else "gelu", node.input())


@converts("Softplus")
def softplus_node(node: Node, g: GraphBuilder) -> Tensor:
    """`log(1 + exp(x))`."""
    return softplus(g, node.input())


@converts("Softsign")
def softsign(node: Node, g: GraphBuilder) -> Tensor:
    """`x / (1 + |x|)`."""
    x = node.input()
    return g.div(x, g.add(g.unary("abs", x), 1))


@converts("Mish", since=18)
def mish(node: Node, g: GraphBuilder) -> Tensor:
    """`x * tanh(softplus(x))`."""
    x = node.input()
    return g.mul(x, g.unary("tanh", softplus(g, x)))


@converts("Swish", since=24)
def swish(node: Node, g: GraphBuilder) -> Tensor:
    """`x * sigmoid(alpha * x)`."""
    x = node.input()
    return g.mul(x, g.unary("sigmoid", g.mul(x, node.float("alpha", 1.0))))


def _holds(x: Tensor, value: float) -> bool:
    """Whether a number and its negative are representable in the element type of `x`."""
    if x.is_float:
        return True
    lowest, highest = integer_limits(x.element)
    return value.is_integer() and lowest <= -abs(value) and abs(value) <= highest


@converts("Shrink", since=9)
def shrink(node: Node, g: GraphBuilder) -> Tensor:
    """`x < -lambd ? x + bias : x > lambd ? x - bias : 0`; for integers, the result is truncated."""
    x, bias, threshold = node.input(), node.float("bias", 0.0), node.float("lambd", 0.5)
    compared = x if _holds(x, threshold) else g.cast(x, f64)
    moved = x if x.is_float or bias.is_integer() else g.cast(x, f64)
    by = g.scalar(bias, moved) if moved.is_float else _modular(g, int(bias), x)
    above = g.where(g.binary("gt", compared, threshold), g.sub(moved, by), g.scalar(0, moved))
    return g.cast(g.where(g.binary("lt", compared, -threshold), g.add(moved, by), above), x.element)


def _modular(g: GraphBuilder, value: int, like: Tensor) -> Tensor:
    """The number of the integer type of `like` that equals a value modulo two to the power of its bits."""
    bits = 8 * like.dtype.itemsize
    return g.constant(np.array(value % (1 << bits), f"uint{bits}").view(like.dtype))
