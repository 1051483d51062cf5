"""Scaled dot-product attention."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.torch.call import Call
from treadle.frontends.torch.registry import converts


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
    if causal and q.shape[-2] != k.shape[-2]:
        below = np.tri(int(q.shape[-2]), int(k.shape[-2]), dtype=np.bool_)
        mask, causal = g.constant(np.where(below, 0.0, -inf).astype(q.dtype)), False
    scale = c.value("scale")
    scale = 1 / sqrt(q.shape[-1]) if scale is None else float(scale)
    operands = [q, k, v] if mask is None else [q, k, v, mask]
    guard = mask is not None
    return g.emit(lambda s: AttentionOp(*s, scale=scale, causal=causal, guard=guard), *operands)


def _mask(c: Call, g: GraphBuilder, q: Tensor, k: Tensor) -> Tensor | None:
    mask = c.optional("attn_mask")
    if mask is None or mask.is_float:
        return mask
    return g.where(mask, g.scalar(0.0, q), g.scalar(-inf, q))
