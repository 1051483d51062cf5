"""What ONNX Runtime's optimiser fuses: normalisations of sums, activations, LSTM with quantised weights."""

from __future__ import annotations

from functools import partial

import numpy as np
from xdsl.dialects.builtin import i32

from treadle.dialects.graph import LayerNormOp
from treadle.frontends.common import composed
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import softplus
from treadle.frontends.onnx.converters.linear import convolution, gemm, plus_bias
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.converters.microsoft.quantized import dynamically_quantized_product
from treadle.frontends.onnx.converters.recurrent import Matrix, check_weights, entry, lstm_of
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# Activations, and what is fused with them: FusedGemm, FusedConv.

_ACTIVATIONS = ("", "Relu", "Tanh", "Sigmoid", "Softplus", "LeakyRelu", "Clip", "HardSigmoid", "Elu")


@converts("Gelu", domain=DOMAIN)
def gelu(node: Node, g: GraphBuilder) -> Tensor:
    """The exact one."""
    return g.unary("gelu", node.input())


@converts("BiasGelu", domain=DOMAIN)
def bias_gelu(node: Node, g: GraphBuilder) -> Tensor:
    """Of a sum, exact."""
    return g.unary("gelu", g.add(node.input(0), node.input(1)))


@converts("FastGelu", domain=DOMAIN)
def fast_gelu(node: Node, g: GraphBuilder) -> Tensor:
    """The approximation by tanh, of a sum if there is a bias."""
    x, bias = node.input(), node.optional(1)
    return g.unary("gelu_tanh", x if bias is None else g.add(x, bias))


@converts("QuickGelu", domain=DOMAIN)
def quick_gelu(node: Node, g: GraphBuilder) -> Tensor:
    """`x * sigmoid(alpha * x)`."""
    x = node.input()
    return g.mul(x, g.unary("sigmoid", g.mul(x, node.float("alpha", 1.702))))


@converts("FusedGemm", domain=DOMAIN)
def fused_gemm(node: Node, g: GraphBuilder) -> Tensor:
    """A Gemm, then an activation."""
    given = [node.optional_float(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return _activated(node, g, gemm(node, g), [value for value in given if value is not None])


@converts("FusedConv", domain=DOMAIN)
def fused_conv(node: Node, g: GraphBuilder) -> Tensor:
    """A convolution, the addition of a tensor, then an activation."""
    x, added = plus_bias(g, convolution(node, g, node.input(0), node.input(1)), node.optional(2)), node.optional(3)
    return _activated(node, g, x if added is None else g.add(x, added), node.floats("activation_params") or [])


def _activated(node: Node, g: GraphBuilder, x: Tensor, parameters: list[float]) -> Tensor:
    """What the attribute `activation` says, of parameters that have to be there."""
    kind = node.string("activation", "", _ACTIVATIONS)
    wanted = {"LeakyRelu": 1, "Elu": 1, "Clip": 2, "HardSigmoid": 2}.get(kind, 0)
    if len(parameters) < wanted:
        raise node.error(f"{len(parameters)} parameters of the activation {kind}", f"{wanted} parameters")
    first, second = [*parameters, 0.0, 0.0][:2]
    if kind in ("Relu", "Tanh", "Sigmoid"):
        return g.unary(kind.lower(), x)
    if kind == "Softplus":
        return softplus(g, x)
    if kind == "LeakyRelu":
        return g.where(g.binary("lt", x, 0), g.mul(x, first), x)
    if kind == "Elu":
        return g.where(g.binary("lt", x, 0), g.mul(g.sub(g.unary("exp", x), 1), first), x)
    if kind == "Clip":
        return g.binary("min", g.binary("max", x, first), second)
    if kind == "HardSigmoid":
        return g.binary("min", g.binary("max", g.add(g.mul(x, first), second), 0), 1)
    return x


# LSTM with quantised weights, as ONNX Runtime's quantiser writes it.

_SCALES = {1: 8, 2: 10}
"""The input that has the scales of a matrix, by that of the matrix; the next one has the zero points."""


@converts("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """An LSTM that multiplies bytes: what is multiplied is quantised by its own range, that of the input of all steps
    and that of a step's states.

    ONNX Runtime's range is another one where it divides the states of a batch among threads, each of which takes that
    of its part, and backward where sequences are of different lengths, whose last steps it computes together.
    """
    return lstm_of(node, g, _bytes)


def _bytes(node: Node, g: GraphBuilder, count: int, gates: int) -> tuple[int, list[tuple[Matrix, Matrix]]]:
    """Of inputs 1 and 2, `[directions, I, gates * H]` and `[directions, H, gates * H]`, with a scale and a zero point
    each direction or each column."""
    r = node.input(2)
    size = node.int("hidden_size", r.shape[1] if r.rank == 3 else 0)
    columns = gates * size
    check_weights(node, size, ((count, node.input(0).shape[-1], columns), (count, size, columns)))

    def matrix(n: int, d: int) -> Matrix:
        scales = [node.input(_SCALES[n]), node.input(_SCALES[n] + 1)]
        for each in scales:
            if each.shape not in ((count,), (count, columns)):
                raise node.error(f"scales or zero points of shape {each.shape}", f"{(count,)} or {(count, columns)}")
        parts = tuple(entry(g, each, d) for each in (node.input(n), *scales))
        return Matrix(parts, partial(dynamically_quantized_product, node))

    return size, [(matrix(1, d), matrix(2, d)) for d in range(count)]


# Layer normalisations of sums: skip connections and embeddings.

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
    y = composed.rms_norm(g, total, [total.rank - 1], node.input(2), node.float("epsilon", _EPSILON))
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
