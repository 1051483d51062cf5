"""Products of matrices, convolutions, attention and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

import numpy as np
from xdsl.dialects.builtin import bf16, f32, f64, i32

from treadle.dialects.graph import BatchNormOp, ConvOp, ConvTransposeOp, LayerNormOp, MatmulOp
from treadle.dialects.graph.dtypes import SMALL_FLOATS, epsilon
from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.dialects.graph.linear import BF16
from treadle.frontends.common import composed
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import group_norm, instance_norm, matmul, plus_bias, rms_norm, softmax_along
from treadle.frontends.common.extent import Symbolic, is_symbolic
from treadle.frontends.torch.call import Call, converts

# Scaled dot-product attention.


@converts("scaled_dot_product_attention.default")
def attention(c: Call, g: GraphBuilder) -> Tensor:
    """A row that a mask leaves without keys is zero, as in PyTorch; causal means up to the row's own number."""
    q, k, v = (c.tensor(name) for name in ("query", "key", "value"))
    if c.value("dropout_p"):
        raise c.error(f"dropout_p is {c.value('dropout_p')}", "0: inference")
    if min(x.rank for x in (q, k, v)) < 2 or 0 in (*q.shape, *k.shape, *v.shape):
        raise c.error(f"operands of shapes {q.shape}, {k.shape}, {v.shape}", "rank 2 and more, and no extent of 0")
    heads = 3 if c.flag("enable_gqa") else 2
    lead = broadcast_shapes([x.shape[:-heads] for x in (q, k, v)])
    q, k, v = (g.broadcast(x, (*lead, *x.shape[x.rank - heads :])) for x in (q, k, v))
    mask, causal = _mask(c, g, q, k), c.flag("is_causal")
    offset = None
    if causal and is_symbolic((q.shape[-2], k.shape[-2])):
        offset = None if q.shape[-2] == k.shape[-2] else g.numbers(0)
    elif causal and q.shape[-2] != k.shape[-2]:
        below = np.tri(int(q.shape[-2]), int(k.shape[-2]), dtype=np.bool_)
        mask, causal = g.constant(np.where(below, 0.0, -inf).astype(q.dtype)), False
    scale = c.value("scale")
    scale = 1 / sqrt(q.shape[-1]) if scale is None else float(scale)
    return composed.attention(g, q, k, v, mask, scale=scale, causal=causal, guard=mask is not None, offset=offset)


def _mask(c: Call, g: GraphBuilder, q: Tensor, k: Tensor) -> Tensor | None:
    mask = c.optional("attn_mask")
    if mask is None or mask.is_float:
        return mask
    return g.where(mask, g.scalar(0.0, q), g.scalar(-inf, q))


# Normalisations, and softmax.


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


# Products of matrices, and convolutions.


@converts("mm.default", "bmm.default", "mv.default")
def product(c: Call, g: GraphBuilder) -> Tensor:
    """Of matrices, of batches of them, or of a matrix and a vector."""
    second = "vec" if c.name.startswith("mv") else "mat2"
    return matmul(g, c.tensor(), c.tensor(second))


@converts("matmul.default")
def any_product(c: Call, g: GraphBuilder) -> Tensor:
    """NumPy's matmul."""
    return matmul(g, c.tensor(), c.tensor("other"))


@converts("dot.default")
def dot(c: Call, g: GraphBuilder) -> Tensor:
    """Of two vectors."""
    return matmul(g, c.tensor(), c.tensor("tensor"))


@converts("linear.default")
def linear(c: Call, g: GraphBuilder) -> Tensor:
    """`x W' + b`."""
    weight, bias = c.tensor("weight"), c.optional("bias")
    y = matmul(g, c.tensor("input"), g.transpose(weight, (1, 0)) if weight.rank == 2 else weight)
    return y if bias is None else g.add(y, bias)


@converts("addmm.default", "baddbmm.default")
def addmm(c: Call, g: GraphBuilder) -> Tensor:
    """`beta * self + alpha * A B`."""
    first, second = ("mat1", "mat2") if c.name.startswith("addmm") else ("batch1", "batch2")
    y = matmul(g, c.tensor(first), c.tensor(second))
    alpha, beta = c.value("alpha"), c.value("beta")
    y = y if alpha == 1 else g.mul(y, alpha)
    if beta == 0:
        return y
    return g.add(y, c.tensor() if beta == 1 else g.mul(c.tensor(), beta))


@converts("_int_mm.default")
def integer_product(c: Call, g: GraphBuilder) -> Tensor:
    """Of bytes, as int32."""
    return matmul(g, g.cast(c.tensor(), i32), g.cast(c.tensor("mat2"), i32))


@converts("_weight_int8pack_mm.default")
def product_of_bytes(c: Call, g: GraphBuilder) -> Tensor:
    """`x W'` of floats and a matrix of bytes, whose rows have scales; sums are in f32."""
    x, weight, scales = c.tensor(), c.tensor("mat2"), c.tensor("scales")
    y = matmul(g, g.cast(x, f32), g.transpose(g.cast(weight, f32), (1, 0)))
    return g.cast(g.mul(y, g.cast(scales, f32)), x.element)


@converts("_scaled_mm.default")
def scaled_mm(c: Call, g: GraphBuilder) -> Tensor:
    """A product of floats of 8 bits, with sums in f32, times scales of the operands, or of their rows and columns."""
    a, b = c.tensor(), c.tensor("mat2")
    if not {a.element, b.element} <= set(SMALL_FLOATS):
        raise c.error(f"operands of {a.type} and {b.type}", "float8_e4m3fn or float8_e5m2")
    # Results that are rounded to bf16 need no sums that are more exact.
    precision = BF16 if c.element == bf16 else None
    y = g.emit(lambda v: MatmulOp(v[0], v[1], sums=f32, precision=precision), a, b)
    scales = [_scale_of(c, name, ends) for name, ends in (("scale_a", (a.shape[0], 1)), ("scale_b", (1, b.shape[1])))]
    for scale in scales:
        y = g.mul(y, scale if scale.rank == 2 else g.reshape(scale, ()))
    bias, scale = c.optional("bias"), c.optional("scale_result")
    y = y if bias is None else g.add(y, g.cast(bias, f32))
    y = y if scale is None or c.element not in SMALL_FLOATS else g.mul(y, g.reshape(scale, ()))
    return g.cast(y, c.element)


def _scale_of(c: Call, name: str, ends: tuple[Symbolic, Symbolic]) -> Tensor:
    """One number, or one for each row or column."""
    scale = c.tensor(name)
    if scale.shape not in ((), (1,), (1, 1), ends) or scale.element != f32:
        raise c.error(f"{name} of {scale.type}", f"float32 of shape () or {ends}: not of blocks")
    return scale


@converts("convolution.default")
def convolution(c: Call, g: GraphBuilder) -> Tensor:
    """The bias is an addition of its own."""
    x, w = c.tensor("input"), c.tensor("weight")
    rank = x.rank - 2
    strides, padding, dilations = (c.ints(name, rank) for name in ("stride", "padding", "dilation"))
    groups = c.int("groups")
    if not c.flag("transposed"):
        pads = padding * 2
        y = g.emit(lambda v: ConvOp(v[0], v[1], strides, pads, dilations, groups), x, w)
    else:
        extra = c.ints("output_padding", rank)
        y = g.emit(lambda v: ConvTransposeOp(v[0], v[1], strides, padding * 2, dilations, groups, extra), x, w)
    return plus_bias(g, y, c.optional("bias"))
