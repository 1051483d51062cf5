"""Layer normalisations of sums: skip connections and embeddings."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import i32

from treadle.dialects.graph import LayerNormOp
from treadle.frontends.common import normalization
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

_EPSILON = 1e-12


@converts("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_norm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The normalisation of `input + skip + bias` over the last dimension, and that sum as the fourth output."""
    total = _sum(node, g, 4)
    y = _layer_norm(g, total, node.input(2), node.optional(3), node.float("epsilon", _EPSILON))
    return [y, total, total, total]


@converts("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_rms_norm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """As SkipLayerNormalization, by the root of the mean square, without `beta`."""
    total = _sum(node, g, 3)
    y = normalization.rms_norm(g, total, [total.rank - 1], node.input(2), node.float("epsilon", _EPSILON))
    return [y, total, total, total]


def _sum(node: Node, g: GraphBuilder, bias: int) -> Tensor:
    x, skip = node.input(0), node.input(1)
    if x.rank not in (2, 3) or skip.shape[-1:] != x.shape[-1:]:
        raise node.error(
            f"an input of shape {x.shape} and a skip of shape {skip.shape}", "rank 2 or 3, one hidden size"
        )
    for output in (1, 2):
        if output < len(node.used) and node.used[output]:
            raise node.error(f"output {output} ('{node.proto.output[output]}') is used", "outputs 0 and 3 being used")
    total, added = g.add(x, skip), node.optional(bias)
    return total if added is None else g.add(total, added)


def _layer_norm(g: GraphBuilder, x: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    rows = x.shape[-1:]
    bias = bias or g.constant(np.broadcast_to(np.array(-0.0, x.dtype), rows))
    scale, bias = g.broadcast(scale, rows), g.broadcast(bias, rows)
    return g.emit(lambda v: LayerNormOp(v[0], v[1], v[2], x.rank - 1, epsilon), x, scale, bias)


@converts("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_norm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The normalisation of the sum of rows for words, positions and segments; the number of ones in each row of the
    mask (0 without one); the sum."""
    node.ignore("mask_index_type")
    ids, segments, mask, positions = node.input(0), node.optional(1), node.optional(7), node.optional(8)
    if ids.rank != 2:
        raise node.error(f"ids of rank {ids.rank}", "[batch, sequence]")
    words, places, kinds = node.input(2), node.input(3), node.optional(4)
    total = g.add(g.gather(words, ids, 0), _places(node, g, places, positions, ids))
    if segments is not None and kinds is not None:
        total = g.add(total, g.gather(kinds, segments, 0))
    y = _layer_norm(g, total, node.input(5), node.input(6), node.float("epsilon", _EPSILON))
    if mask is None:
        counts = g.broadcast(g.constant(np.zeros((), np.int32)), ids.shape[:1])
    else:
        counts = g.reduce("add", g.cast(g.binary("eq", mask, 1), i32), [1], keep=False)
    return [y, counts, total]


def _places(node: Node, g: GraphBuilder, table: Tensor, positions: Tensor | None, ids: Tensor) -> Tensor:
    if positions is not None:
        return g.gather(table, positions, 0)
    if ids.shape[1] > table.shape[0]:
        raise node.error(f"a sequence of {ids.shape[1]} and {table.shape[0]} positions", "a position for each word")
    return g.narrow(table, 0, 0, ids.shape[1])
