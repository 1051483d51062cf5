"""MatMulNBits: a product with weights of 2, 4 or 8 bits, quantised in blocks."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import i32

from treadle.dialects.graph.dtypes import ui8
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.products import matmul
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts
from treadle.frontends.onnx.tensor_data import Array


@converts("MatMulNBits", domain=DOMAIN)
def matmul_n_bits(node: Node, g: GraphBuilder) -> Tensor:
    """`A W + bias`, of float32 arithmetic whatever `accuracy_level` allows.

    Column n of W is row n of B, whose bytes hold several numbers, the first in the lowest bits: `(number - zero) *
    scale`, of each block of `block_size` rows of W.
    """
    node.ignore("accuracy_level")
    if node.int("weight_prepacked", 0):
        raise node.error("attribute 'weight_prepacked' is not 0", "0")
    if node.optional(4) is not None:
        raise node.error("input 4 ('g_idx') is given", "no such input")
    bits, block = node.int("bits", 4), node.int("block_size", 0)
    columns, rows = node.int("N", 0), node.int("K", 0)
    x, packed, scales, zeros, bias = (node.input(0), node.input(1), node.input(2), node.optional(3), node.optional(5))
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1) or min(columns, rows) < 1:
        shown = f"bits {bits}, block_size {block}, N {columns}, K {rows}"
        raise node.error(shown, "2, 4 or 8 bits, and a block_size of a power of 2 from 16 upwards")
    blocks = -(-rows // block)
    if packed.element != ui8 or prod(packed.shape) != columns * blocks * block * bits // 8:
        raise node.error(f"weights {packed.type}", f"uint8 of shape ({columns}, {blocks}, {block * bits // 8})")
    numbers = g.reshape(unpacked(node, g, packed, bits), (columns, blocks, block))
    zero = _zeros(node, g, zeros, (columns, blocks), bits)
    if prod(scales.shape) != columns * blocks:
        raise node.error(f"scales of shape {scales.shape}", f"({columns}, {blocks})")
    by = g.reshape(scales, (columns, blocks, 1))
    wide = (
        g.cast(g.sub(g.cast(numbers, i32), zero), x.element)
        if not zero.is_float
        else g.sub(g.cast(numbers, x.element), g.cast(zero, x.element))
    )
    weights = g.reshape(g.mul(wide, g.cast(by, x.element)), (columns, blocks * block))
    product = matmul(g, x, g.transpose(g.narrow(weights, 1, 0, rows), (1, 0)))
    return product if bias is None else g.add(product, bias)


def _zeros(node: Node, g: GraphBuilder, zeros: Tensor | None, shape: tuple[int, int], bits: int) -> Tensor:
    """`[columns, blocks, 1]`: of floats as they are, of bytes as several numbers each."""
    columns, blocks = shape
    if zeros is None:
        return g.constant(np.array(1 << (bits - 1), np.int32))
    if zeros.is_float and prod(zeros.shape) == columns * blocks:
        return g.reshape(zeros, (columns, blocks, 1))
    row = -(-blocks * bits // 8)
    if zeros.element != ui8 or prod(zeros.shape) != columns * row:
        raise node.error(f"zero points {zeros.type}", f"uint8 of shape ({columns}, {row}), or floats of {shape}")
    numbers = g.reshape(unpacked(node, g, zeros, bits), (columns, row * 8 // bits))
    return g.cast(g.reshape(g.narrow(numbers, 1, 0, blocks), (columns, blocks, 1)), i32)


def unpacked(node: Node, g: GraphBuilder, packed: Tensor, bits: int) -> Tensor:
    """The numbers that bytes hold, as bytes in a last dimension."""
    if bits == 8:
        return packed
    count, most = 8 // bits, (1 << bits) - 1
    if packed.array is not None:
        node.reserve((*packed.shape, count), packed.dtype)
        return g.constant(_split(packed.array, bits))
    powers = g.constant(np.array([1 << bits * n for n in range(count)], np.uint8))
    bytes_ = g.reshape(packed, (*packed.shape, 1))
    return g.binary("and", g.div(bytes_, powers), most)


def _split(packed: Array, bits: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_and(np.right_shift(packed[..., None], shifts), np.uint8((1 << bits) - 1))
