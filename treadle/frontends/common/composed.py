"""What converters write in simpler operators: activations, softmax, normalisations, products, remainders."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np
from xdsl.ir import SSAValue

from treadle.dialects.graph import AttentionOp, SoftmaxOp
from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.dialects.scalar import is_unsigned
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, is_symbolic, range_of
from treadle.frontends.common.result_extents import symbols_in

# Activation functions of several operators.


def softplus(g: GraphBuilder, x: Tensor) -> Tensor:
    """`max(x, 0) + log(1 + exp(-|x|))`, which does not overflow."""
    tail = g.unary("exp", g.unary("neg", g.unary("abs", x)))
    return g.add(g.unary("relu", x), g.unary("log", g.add(tail, 1)))


# Softmax and its logarithm.


def softmax_along(g: GraphBuilder, x: Tensor, dim: int, log: bool) -> Tensor:
    """Softmax along a dimension, or its logarithm."""
    if not log:
        return g.emit(lambda v: SoftmaxOp(v[0], dim), x)
    wide = g.widened(x)
    shifted = g.sub(wide, g.reduce("max", wide, [dim], keep=True))
    total = g.reduce("add", g.unary("exp", shifted), [dim], keep=True)
    return g.cast(g.sub(shifted, g.unary("log", total)), x.element)


def attention(
    g: GraphBuilder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    causal: bool = False,
    guard: bool = False,
    length: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """`graph.attention`, of extents of a call: keys end at theirs, and the last row of causal attention sees the last
    key. With a soft cap or a sink, which the operator does not have, products with a softmax between them, of rank 4.

    mask: is added to the scores, in floats
    softcap: scores are `softcap * tanh(score / softcap)` before anything is added to them or hidden; not if it is 0
    sink: floats that broadcast to the scores' rows, `exp(sink)` being another term of each row's sum. Source: Xiao et
        al., "Efficient streaming language models with attention sinks", ICLR 2024
    length, offset: as the operator takes them, numbers of i64, where they are no extents
    """
    if softcap or sink is not None:
        scores = _scores(g, q, k, scale, softcap)
        scores = scores if mask is None else g.add(scores, g.cast(mask, scores.element))
        scores, v = _hidden(g, scores, v, causal, length, offset)
        return _weighted(g, scores, v, sink, guard)
    rows, keys = q.shape[-2], k.shape[-2]
    end = length or (g.numbers(keys) if isinstance(keys, Extent) else None)
    if causal and offset is None and rows != keys and is_symbolic((rows, keys)):
        offset = g.numbers(keys - rows)
    optional = [each for each in (mask, end, offset) if each is not None]

    def build(s: Sequence[SSAValue]) -> AttentionOp:
        given = iter(s[3:])
        added, ends, behind = (None if each is None else next(given) for each in (mask, end, offset))
        return AttentionOp(s[0], s[1], s[2], added, ends, behind, scale=scale, causal=causal, guard=guard)

    return g.emit(build, q, k, v, *optional)


def _scores(g: GraphBuilder, q: Tensor, k: Tensor, scale: float, softcap: float) -> Tensor:
    """`[batch, heads, rows, keys]`, scaled and capped."""
    batch, heads, rows, size = q.shape
    groups, keys = k.shape[1], k.shape[2]
    by_group = g.reshape(q, (batch, groups, heads // groups * rows, size))
    product = g.matmul(by_group, g.transpose(k, (0, 1, 3, 2)))
    scores = g.mul(g.widened(g.reshape(product, (batch, heads, rows, keys))), scale)
    return g.mul(g.unary("tanh", g.div(scores, softcap)), softcap) if softcap else scores


def _hidden(
    g: GraphBuilder, scores: Tensor, v: Tensor, causal: bool, length: Tensor | None, offset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores that are -inf where a row does not see a key, and values that are 0 beyond the length."""
    rows, keys = scores.shape[2:]
    places = g.iota(keys)
    if causal:
        last = g.add(g.reshape(g.iota(rows), (rows, 1)), g.numbers(keys - rows) if offset is None else offset)
        scores = g.where(g.binary("le", places, last), scores, g.scalar(-inf, scores))
    if length is not None:
        exists = g.binary("lt", places, length)
        scores = g.where(exists, scores, g.scalar(-inf, scores))
        v = g.where(g.reshape(exists, (keys, 1)), v, g.scalar(0.0, v))
    return scores, v


def _weighted(g: GraphBuilder, scores: Tensor, v: Tensor, sink: Tensor | None, guard: bool) -> Tensor:
    """The values, weighed by the softmax of the scores, which is 0 instead of NaN with `guard`."""
    batch, heads, rows, keys = scores.shape
    groups = v.shape[1]
    shares = softmax_along(g, scores, 3, log=False) if sink is None else _softmax_beside(g, scores, sink)
    if guard:
        shares = g.where(g.binary("ne", shares, shares), g.scalar(0.0, shares), shares)
    by_group = g.reshape(g.cast(shares, v.element), (batch, groups, heads // groups * rows, keys))
    return g.reshape(g.matmul(by_group, v), (batch, heads, rows, v.shape[3]))


def _softmax_beside(g: GraphBuilder, scores: Tensor, sink: Tensor) -> Tensor:
    """Softmax of each row and one more element, which the result does not have."""
    sink = g.cast(sink, scores.element)
    most = g.binary("max", g.reduce("max", scores, [scores.rank - 1], keep=True), sink)
    weights = g.unary("exp", g.sub(scores, most))
    total = g.reduce("add", weights, [scores.rank - 1], keep=True)
    return g.div(weights, g.add(total, g.unary("exp", g.sub(sink, most))))


# Queries, keys and values by heads: `[batch, heads, sequence, size]`.


def split_heads(g: GraphBuilder, x: Tensor, heads: int) -> Tensor:
    """`[batch, sequence, heads * size]` by heads."""
    split = g.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
    return g.transpose(split, (0, 2, 1, 3))


def joined(g: GraphBuilder, x: Tensor) -> Tensor:
    """The heads of a position one behind the other again."""
    batch, heads, length, size = x.shape
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


# Normalisation by statistics of the tensor itself.


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


# Products of matrices and of batches of them, and the bias of each channel.


def matmul(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """NumPy's matmul as `graph.matmul`: vectors become matrices, batch dimensions equal or absent.

    Rows of a batched left operand against one matrix are one long matrix.
    """
    left = g.reshape(a, (1, *a.shape)) if a.rank == 1 else a
    right = g.reshape(b, (*b.shape, 1)) if b.rank == 1 else b
    product = _matrices(g, left, right)
    shape = list(product.shape)
    if b.rank == 1:
        del shape[-1]
    if a.rank == 1:
        del shape[len(shape) - (1 if b.rank == 1 else 2)]
    return g.reshape(product, shape)


def _matrices(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if prod(b.shape[:-2]) == 1 and a.rank > 2:
        rows = g.reshape(a, (prod(a.shape[:-1]), a.shape[-1]))
        return g.reshape(g.matmul(rows, g.reshape(b, b.shape[-2:])), shape)
    if prod(a.shape[:-2]) == 1 and b.rank > 2:
        return g.reshape(g.matmul(g.reshape(a, a.shape[-2:]), b), shape)
    if a.rank > 2:
        a, b = (g.broadcast(v, (*batch, *v.shape[-2:])) for v in (a, b))
    return g.matmul(a, b)


def plus_bias(g: GraphBuilder, y: Tensor, bias: Tensor | None) -> Tensor:
    """A bias of one value a channel."""
    if bias is None:
        return y
    return g.add(y, g.reshape(bias, (1, prod(bias.shape), *[1] * (y.rank - 2))))


# Remainders of divisions.


def floored_remainder(g: GraphBuilder, a: Tensor, b: Tensor) -> Tensor:
    """The remainder of Python, whose sign is the divisor's."""
    remainder = g.binary("mod", a, b)
    if is_unsigned(a.element) or (_is_not_negative(a) and _is_not_negative(b)):
        return remainder
    if a.is_float:
        return _with_sign_of(g, remainder, b)
    signs_differ = g.binary("lt", g.binary("xor", remainder, b), 0)
    wraps = g.binary("and", signs_differ, g.binary("ne", remainder, 0))
    return g.where(wraps, g.add(remainder, b), remainder)


def _is_not_negative(x: Tensor) -> bool:
    """Whether integers are known that are not negative in any call."""
    if x.elements is None:
        return x.array is not None and x.dtype.kind in "iu" and not np.less(x.array, 0).any()
    ranges = [range_of(value) for value in symbols_in(x.elements)]
    return all(known is not None and known[0] >= 0 for known in ranges)


def _with_sign_of(g: GraphBuilder, remainder: Tensor, b: Tensor) -> Tensor:
    """C's remainder of a division by `b` as Python's, whose sign is that of `b`, also for a zero."""
    negative = g.binary("lt", b, 0)
    other = g.binary("xor", g.binary("lt", remainder, 0), negative)
    zero = g.where(negative, g.scalar(-0.0, b), g.scalar(0.0, b))
    signed = g.where(other, g.add(remainder, b), remainder)
    return g.where(g.binary("eq", remainder, 0), zero, signed)
