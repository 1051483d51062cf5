"""Mixtures of experts: MoE and QMoE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import i32

from treadle.dialects.graph.dtypes import ui8
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import softmax_along
from treadle.frontends.common.extent import Extent, Symbolic, bound_of
from treadle.frontends.common.indexing import ordered
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.converters.microsoft.quantized import unpacked
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

# The layers of all experts.


@dataclass(frozen=True)
class _Layer:
    """One layer `[experts, outputs, inputs]` of each expert, and its bias `[experts, outputs]`.

    scales, zeros: of weights that are `bits` wide, in bytes that hold several of a row: one for each row, or for each
        block of it
    """

    node: Node
    weights: Tensor
    bias: Tensor | None
    inputs: int
    scales: Tensor | None = None
    zeros: Tensor | None = None
    bits: int = 8

    @property
    def outputs(self) -> int:
        return bound_of(self.weights.shape[1])

    def matrices(self, g: GraphBuilder, chosen: Tensor | None) -> Tensor:
        """`[..., outputs, inputs]` of the experts that are chosen, or of all of them."""
        weights = _chosen(g, self.weights, chosen)
        if self.scales is None:
            return weights
        scales, bits = _chosen(g, self.scales, chosen), self.bits
        lead = weights.shape[:-2]
        blocks = 1 if self.scales.rank == 2 else bound_of(self.scales.shape[2])
        shape = (*lead, self.outputs, blocks, self.inputs // blocks)
        numbers = g.cast(g.reshape(unpacked(self.node, g, weights, bits), shape), i32)
        numbers = g.sub(numbers, self._zeros(g, chosen, (*lead, self.outputs), blocks))
        by = g.reshape(scales, (*lead, self.outputs, blocks, 1))
        return g.reshape(g.mul(g.cast(numbers, by.element), by), (*lead, self.outputs, self.inputs))

    def _zeros(self, g: GraphBuilder, chosen: Tensor | None, lead: Sequence[Symbolic], blocks: int) -> Tensor:
        """`[lead..., blocks, 1]`, or one number."""
        if self.zeros is None:
            return g.constant(np.array(1 << self.bits - 1, np.int32))
        zeros = unpacked(self.node, g, _chosen(g, self.zeros, chosen), self.bits)
        count = blocks if self.zeros.rank == 3 else self.outputs
        rows = lead if self.zeros.rank == 3 else lead[:-1]
        packed = prod(zeros.shape[len(rows) :])
        zeros = g.narrow(g.reshape(zeros, (*rows, packed)), len(rows), 0, count)
        return g.cast(g.reshape(zeros, (*lead, blocks, 1)), i32)

    def of_all(self, g: GraphBuilder, x: Tensor) -> Tensor:
        """`[experts, rows, outputs]` of `[rows, inputs]`, or of as many for each expert."""
        matrices = g.cast(self.matrices(g, None), x.element)
        y = g.matmul(x, g.transpose(matrices, (0, 2, 1)))
        return y if self.bias is None else g.add(y, g.reshape(self.bias, (y.shape[0], 1, self.outputs)))

    def of_chosen(self, g: GraphBuilder, x: Tensor, chosen: Tensor) -> Tensor:
        """`[rows, k, outputs]` of `[rows, k or 1, inputs]` and the experts of each row."""
        count, k = chosen.shape
        if self.scales is None or self.bits == 8:
            columns = g.reshape(g.broadcast(x, (count, k, self.inputs)), (count * k, self.inputs, 1))
            matrices = g.reshape(g.cast(self.matrices(g, chosen), x.element), (count * k, self.outputs, self.inputs))
            y = g.reshape(g.matmul(matrices, columns), (count, k, self.outputs))
        else:
            y = g.cast(self._by_parts(g, x, chosen), x.element)
        return y if self.bias is None else g.add(y, g.gather(self.bias, chosen, 0))

    def _by_parts(self, g: GraphBuilder, x: Tensor, chosen: Tensor) -> Tensor:
        """The sum over the places in a byte of products with the numbers there, which are read as vectors of bytes."""
        parts = 8 // self.bits
        spread = g.reshape(g.widened(x), (*x.shape[:2], 1, self.inputs // parts, parts))
        products: list[Tensor] = []
        for part in range(parts):
            weights = g.cast(self._part(g, chosen, part), spread.element)
            products.append(g.reduce("add", g.mul(weights, g.entry(spread, 4, part)), [3], keep=False))
        total = products[0]
        for product in products[1:]:
            total = g.add(total, product)
        return total

    def _part(self, g: GraphBuilder, chosen: Tensor, part: int) -> Tensor:
        """`[rows, k, outputs, bytes]`, of the number at one place in each byte."""
        assert self.scales is not None
        weights, bits = _chosen(g, self.weights, chosen), self.bits
        numbers = g.binary("and", g.div(weights, 1 << bits * part), (1 << bits) - 1)
        blocks = 1 if self.scales.rank == 2 else bound_of(self.scales.shape[2])
        lead = weights.shape[:-1]
        shape = (*lead, blocks, self.inputs * bits // 8 // blocks)
        wide = g.sub(g.cast(g.reshape(numbers, shape), i32), self._zeros(g, chosen, lead, blocks))
        by = g.reshape(_chosen(g, self.scales, chosen), (*lead, blocks, 1))
        return g.reshape(g.mul(g.cast(wide, by.element), by), weights.shape)


def _chosen(g: GraphBuilder, x: Tensor, chosen: Tensor | None) -> Tensor:
    return x if chosen is None else g.gather(x, chosen, 0)


# The operators.


@converts("MoE", domain=DOMAIN)
def mixture_of_experts(node: Node, g: GraphBuilder) -> Tensor:
    """For each row the sum of what the `k` experts with the largest scores make of it, by the softmax of all scores.

    Where all rows of the largest call choose fewer experts than there are, only the weights of those are read; else
    every expert computes every row. Source: Shazeer et al., "Outrageously large neural networks: the sparsely-gated
    mixture-of-experts layer", ICLR 2017, section 2.
    """
    width = _width(node)
    layers = [_layer(node, weights, bias) for weights, bias in ((2, 3), (4, 5), (6, 7))]
    return _mixture(node, g, layers, width, None, node.flag("normalize_routing_weights"))


@converts("QMoE", domain=DOMAIN)
def quantized_mixture_of_experts(node: Node, g: GraphBuilder) -> Tensor:
    """As MoE, of weights of 2, 4 or 8 bits with a scale and a zero point for each row or each block of one, in floats
    whatever `accuracy_level` allows. The softmax is that of the chosen experts' scores, unless there are
    `router_weights`. Weights of chosen experts are dequantised as they are read, those of all experts from a
    byte each in each call."""
    node.ignore("accuracy_level")
    node.string("quant_type", "int", ("int",))
    if node.int("weights_prepacked", -1) == 1:
        raise node.error("attribute 'weights_prepacked' is 1", "0 or -1")
    for index in range(15, len(node)):
        if node.optional(index) is not None:
            raise node.error(f"input {index} ('{node.proto.input[index]}') is given", "no such input")
    width, bits, block = _width(node), node.int("expert_weight_bits", 4), node.int("block_size", 0)
    layers: list[_Layer | None] = []
    for n, (weights, zeros) in enumerate(((2, 11), (5, 12), (8, 13)), 1):
        layers.append(_quantized_layer(node, weights, zeros, node.int(f"fc{n}_expert_weight_bits", bits), block))
    shares = node.optional(14)
    normal = node.flag("normalize_routing_weights") or shares is None
    return _mixture(node, g, layers, width, shares, normal)


def _width(node: Node) -> int:
    x = node.input(0)
    if x.rank not in (2, 3) or isinstance(x.shape[-1], Extent):
        raise node.error(f"an input of shape {x.shape}", "[rows, size] or [batch, sequence, size] with a static size")
    return x.shape[-1]


def _layer(node: Node, weights: int, bias: int) -> _Layer | None:
    given = node.optional(weights)
    if given is None:
        return None
    _check_rank(node, given)
    return _Layer(node, given, node.optional(bias), bound_of(given.shape[2]))


def _quantized_layer(node: Node, index: int, zeros: int, bits: int, block: int) -> _Layer | None:
    weights, scales, zero = node.optional(index), node.optional(index + 1), node.optional(zeros)
    if weights is None:
        return None
    _check_rank(node, weights)
    if bits not in (2, 4, 8) or weights.element != ui8 or scales is None:
        message = f"weights {weights.type} of {bits} bits, {'no ' if scales is None else ''}scales"
        raise node.error(message, "uint8 of 2, 4 or 8 bits, and scales")
    experts, outputs, row = weights.shape
    inputs = bound_of(row) * 8 // bits
    if block and (block < 16 or block & (block - 1) or inputs % block):
        raise node.error(f"block_size {block} of rows of {inputs}", "a divisor that is a power of 2 from 16 upwards")
    lead = (experts, outputs, inputs // block) if block else (experts, outputs)
    packed = (*lead[:-1], -(-lead[-1] * bits // 8))
    if scales.shape != lead or (zero is not None and (zero.shape != packed or zero.element != ui8)):
        message = f"scales of shape {scales.shape}" + ("" if zero is None else f", zero points {zero.type}")
        raise node.error(message, f"{lead}, and uint8 of {packed}")
    return _Layer(node, weights, node.optional(index + 2), inputs, scales, zero, bits)


def _check_rank(node: Node, weights: Tensor) -> None:
    if weights.rank != 3:
        raise node.error(f"weights of experts of rank {weights.rank}", "[experts, outputs, inputs]")


def _mixture(
    node: Node, g: GraphBuilder, layers: Sequence[_Layer | None], width: int, shares: Tensor | None, normal: bool
) -> Tensor:
    """shares: what experts are weighed by, if not the softmax of the scores
    normal: whether what the chosen ones are weighed by adds up to 1
    """
    x, scores = node.input(0), node.input(1)
    first, second, third = layers
    assert first is not None and second is not None
    how = _Activation.of(node, third is not None)
    rows, experts, k = prod(x.shape[:-1]), bound_of(first.weights.shape[0]), node.int("k", 1)
    if node.int("use_sparse_mixer", 0):
        raise node.error("attribute 'use_sparse_mixer' is 1", "0")
    if not 1 <= k <= experts:
        raise node.error(f"attribute 'k' is {k}", f"1 to {experts}")
    if any(s.rank != 2 or s.shape[1] != experts for s in (scores, shares or scores)):
        raise node.error(f"scores of shape {scores.shape}", f"[rows, {experts}]")
    inner = first.outputs // 2 if how.fused else first.outputs
    expected = [(experts, first.outputs, width), (experts, width, inner), (experts, inner, width)]
    found = [None if each is None else (bound_of(each.weights.shape[0]), each.outputs, each.inputs) for each in layers]
    if any(a is not None and a != b for a, b in zip(found, expected, strict=True)):
        raise node.error(f"layers {found} of rows of {width}", expected)
    _, chosen = ordered(node, g, scores, 1, k, largest=True)
    weighed = softmax_along(g, scores, 1, log=False) if shares is None else shares
    here = g.binary("eq", g.reshape(chosen, (*chosen.shape, 1)), g.iota(experts))
    each = g.where(here, g.reshape(weighed, (weighed.shape[0], 1, experts)), g.scalar(0.0, weighed))
    if normal:
        each = g.div(each, g.reduce("add", each, [1, 2], keep=True))
    few = bound_of(rows) * k < experts

    def layer(one: _Layer, of: Tensor) -> Tensor:
        return one.of_chosen(g, of, chosen) if few else one.of_all(g, of)

    flat = g.reshape(x, (rows, 1, width) if few else (rows, width))
    hidden = how.applied(g, layer(first, flat))
    if third is not None:
        hidden = g.mul(hidden, how.beside(g, layer(third, flat)))
    share = g.reduce("add", each, [2 if few else 1], keep=few)
    share = share if few else g.reshape(g.transpose(share, (1, 0)), (experts, rows, 1))
    y = g.mul(layer(second, hidden), g.cast(share, x.element))
    return g.reshape(g.reduce("add", y, [1 if few else 0], keep=False), x.shape)


_KINDS = ("relu", "gelu", "silu", "swiglu", "identity")


@dataclass(frozen=True)
class _Activation:
    """Of the first layer; of `swiglu` the gate is `G sigmoid(alpha G)`, and what it multiplies is `L + beta`, each cut
    at a limit. Source: Shazeer, "GLU variants improve Transformer", 2020, section 2.

    fused: whether gates and what they multiply are one layer, in turn (1) or one behind the other (2)
    """

    kind: str
    fused: int
    alpha: float
    beta: float
    limit: float | None

    @classmethod
    def of(cls, node: Node, gated: bool) -> _Activation:
        kind = node.string("activation_type", "relu", _KINDS)
        fused, limit = node.int("swiglu_fusion", 0), node.optional_float("swiglu_limit")
        alpha, beta = node.float("activation_alpha", 1.0), node.float("activation_beta", 0.0)
        if node.int("swiglu_limit_after_activation", 0):
            raise node.error("attribute 'swiglu_limit_after_activation' is 1", "0")
        if kind != "swiglu":
            fused, alpha, beta, limit = 0, 1.0, 0.0, None
        needed = kind == "swiglu" and not fused
        if fused not in (0, 1, 2) or (gated != needed and not (gated and kind == "silu")):
            message = f"activation {kind} with swiglu_fusion {fused} and {'a' if gated else 'no'} third layer"
            raise node.error(message, "a third layer with silu, or with swiglu and swiglu_fusion 0")
        return cls(kind, fused, alpha, beta, limit)

    def applied(self, g: GraphBuilder, x: Tensor) -> Tensor:
        """Of the first layer, with what its gates multiply, if it has that."""
        if self.kind == "identity":
            return x
        if self.kind == "relu":
            return g.unary("relu", x)
        if self.kind == "gelu":
            return g.unary("gelu_tanh", x)
        if not self.fused:
            return self._gate(g, x)
        last, size = x.rank - 1, bound_of(x.shape[-1]) // 2
        if self.fused == 2:
            gate, other = (g.narrow(x, last, start, size) for start in (0, size))
        else:
            pairs = g.reshape(x, (*x.shape[:-1], size, 2))
            gate, other = (g.entry(pairs, last + 1, n) for n in (0, 1))
        return g.mul(self._gate(g, gate), self.beside(g, other))

    def beside(self, g: GraphBuilder, x: Tensor) -> Tensor:
        """What gates multiply."""
        if self.limit is not None:
            x = g.binary("max", g.binary("min", x, self.limit), -self.limit)
        return g.add(x, self.beta) if self.beta else x

    def _gate(self, g: GraphBuilder, x: Tensor) -> Tensor:
        x = x if self.limit is None else g.binary("min", x, self.limit)
        return g.mul(x, g.unary("sigmoid", x if self.alpha == 1 else g.mul(x, self.alpha)))
