"""Quantised operators that ONNX Runtime's quantiser writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Attribute

from treadle.dialects.graph.dtypes import i4, ui8
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import matmul, softmax_along
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.converters.microsoft.attention import projected_attention
from treadle.frontends.onnx.converters.pool import average_pool, max_pool
from treadle.frontends.onnx.converters.quantize import (
    dequantize_linear,
    integer_product,
    quantize_linear,
    rounded,
)
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.tensor_data import Array

# MatMulNBits: a product with weights of 2, 4 or 8 bits, quantised in blocks.


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


# GatherBlockQuantized: slices of a table that is quantised in blocks, as floats.


@converts("GatherBlockQuantized", domain=DOMAIN)
def gather_block_quantized(node: Node, g: GraphBuilder) -> Tensor:
    """`(number - zero) * scale` of the numbers that a Gather along `gather_axis` chooses, with a scale and a zero point
    for each `block_size` of them along `quantize_axis`. Bytes hold several numbers of the last dimension, the first in
    the lowest bits; their zero point is in the middle where there is none, that of integers of 4 bits is 0. A table of
    integers of 4 bits that is known is kept as bytes of two, too, where the last dimension is even and no Gather's.
    """
    data, indices, scales, zeros = node.input(0), node.input(1), node.input(2), node.optional(3)
    bits, block = node.int("bits", 4), node.int("block_size", 128)
    axis = node.axis(node.int("gather_axis", 0), data.rank, "gather_axis")
    along = node.axis(node.int("quantize_axis", 1), data.rank, "quantize_axis")
    is_bytes = data.element == ui8
    if block < 16 or block & (block - 1) or bits not in ((2, 4, 8) if is_bytes else (4,)):
        accepted = "4 bits (of bytes also 2 and 8), and a block_size of a power of 2 from 16 upwards"
        raise node.error(f"bits {bits}, block_size {block}", accepted)
    last = data.rank - 1
    if axis == along or (is_bytes and (axis == last or along != last)):
        message = f"gather_axis {axis} and quantize_axis {along} of data of rank {data.rank}"
        raise node.error(message, "two axes, of bytes the last one as quantize_axis")
    packing = 8 // bits if is_bytes else 1
    shape = [*data.shape[:-1], data.shape[-1] * packing]
    blocks = [-(-extent // block) if d == along else extent for d, extent in enumerate(shape)]
    if list(scales.shape) != blocks:
        raise node.error(f"scales of shape {list(scales.shape)}", blocks)
    chosen = indices.rank - 1 + along if axis < along else along
    if data.array is not None and not is_bytes and axis != last and data.array.shape[-1] % 2 == 0:
        pairs = g.gather(g.constant(_paired(data.array)), indices, axis)
        wide = g.cast(_numbers(node, g, pairs, 4), i32)
        wide = g.sub(wide, 8) if data.element == i4 else wide
    else:
        wide = g.cast(_numbers(node, g, g.gather(data, indices, axis), bits if is_bytes else 8), i32)
    if zeros is not None:
        _check(node, zeros, data, blocks, packing)
        zero = g.cast(_numbers(node, g, g.gather(zeros, indices, axis), bits if is_bytes else 8), i32)
        zero = g.narrow(zero, chosen, 0, blocks[along])
        wide = g.sub(wide, _repeated(g, zero, chosen, block, wide.shape[chosen]))
    elif is_bytes:
        wide = g.sub(wide, 1 << bits - 1)
    by = _repeated(g, g.gather(scales, indices, axis), chosen, block, wide.shape[chosen])
    return g.mul(g.cast(wide, scales.element), by)


def _paired(array: Array) -> Array:
    """Integers of 4 bits as bytes of two, the first in the lowest bits; 8 is added to those with a sign."""
    numbers = array.astype(np.int8)
    numbers = (numbers + 8 if array.dtype == ml_dtypes.int4 else numbers).astype(np.uint8)
    return np.bitwise_or(numbers[..., ::2], np.left_shift(numbers[..., 1::2], 4))


def _check(node: Node, zeros: Tensor, data: Tensor, blocks: Sequence[int], packing: int) -> None:
    expected = [*blocks[:-1], -(-blocks[-1] // packing)]
    if zeros.element != data.element or list(zeros.shape) != expected:
        raise node.error(f"zero points {zeros.type}", f"{data.element} of shape {expected}")


def _numbers(node: Node, g: GraphBuilder, packed: Tensor, bits: int) -> Tensor:
    """The numbers of bytes along the last dimension; others as they are."""
    if packed.element != ui8 or bits == 8:
        return packed
    numbers = unpacked(node, g, packed, bits)
    return g.reshape(numbers, (*packed.shape[:-1], packed.shape[-1] * (8 // bits)))


def _repeated(g: GraphBuilder, x: Tensor, dim: int, count: int, size: int) -> Tensor:
    """Each entry of a dimension `count` times, `size` in all."""
    blocks, before, behind = x.shape[dim], x.shape[:dim], x.shape[dim + 1 :]
    spread = g.broadcast(g.reshape(x, (*before, blocks, 1, *behind)), (*before, blocks, count, *behind))
    return g.narrow(g.reshape(spread, (*before, blocks * count, *behind)), dim, 0, size)


# Products of matrices, some of which are transposed.


@converts("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(node: Node, g: GraphBuilder) -> Tensor:
    """`alpha * A' B'`, each operand with its last dimensions swapped, or its first one moved behind the batch, or
    both; the second name is that of earlier versions."""
    a, b = (_turned(node, g, n) for n in (0, 1))
    alpha, product = node.float("alpha", 1.0), matmul(g, a, b)
    return product if alpha == 1 else g.mul(product, alpha)


def _turned(node: Node, g: GraphBuilder, index: int) -> Tensor:
    x, name = node.input(index), "AB"[index]
    swapped, moved = node.flag(f"trans{name}"), node.flag(f"transBatch{name}")
    if x.rank == 0:
        raise node.error("an operand has rank 0", "rank 1 and more")
    if x.rank == 1:
        return x
    order = [*range(1, x.rank - 1), 0, x.rank - 1] if moved else list(range(x.rank))
    return g.transpose(x, [*order[:-2], order[-1], order[-2]] if swapped else order)


converts("QuantizeLinear", domain=DOMAIN)(quantize_linear)
converts("DequantizeLinear", domain=DOMAIN)(dequantize_linear)


@converts("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(node: Node, g: GraphBuilder) -> Tensor:
    """The product of a matrix that is quantised by its own range, and a quantised one, in floats."""
    y = dynamically_quantized_product(node, g, node.input(0), node.input(1), node.input(2), node.optional(3))
    bias = node.optional(4)
    return y if bias is None else g.add(y, bias)


def dynamically_quantized_product(
    node: Node, g: GraphBuilder, x: Tensor, matrix: Tensor, scale: Tensor, zero: Tensor | None
) -> Tensor:
    """`x` is quantised by its own range, `matrix` has a scale and a zero point, or one of each a column."""
    q, of_rows, middle = dynamically_quantized(g, x)
    product = integer_product(node, g, q, middle, matrix, zero)
    return _in_floats(g, product, of_rows, scale, None)


def dynamically_quantized(g: GraphBuilder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ONNX's DynamicQuantizeLinear: bytes, their scale, and their zero point, by the range of elements and 0."""
    dims = list(range(x.rank))
    low = g.binary("min", g.reduce("min", x, dims, keep=False), 0)
    high = g.binary("max", g.reduce("max", x, dims, keep=False), 0)
    scale = g.div(g.sub(high, low), 255)
    scale = g.where(g.binary("eq", scale, 0), g.scalar(1, scale), scale)
    zero = g.unary("round", g.sub(g.scalar(0, scale), g.div(low, scale)))
    return g.cast(g.add(g.unary("round", g.div(x, scale)), zero), ui8), scale, g.cast(zero, ui8)


@converts("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(node: Node, g: GraphBuilder) -> Tensor:
    """The product of quantised matrices, in floats."""
    product = integer_product(node, g, node.input(0), node.optional(4), node.input(1), node.optional(5))
    return _in_floats(g, product, node.input(2), node.input(3), node.optional(6))


def _in_floats(g: GraphBuilder, product: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Integers times the scales of rows and columns; the bias is added in floats."""
    rows = g.reshape(a, (*a.shape, 1)) if a.rank == 1 and a.shape != (1,) else a
    y = g.mul(g.cast(product, f32), g.mul(rows, b))
    return y if bias is None else g.add(y, bias)


@converts("QAttention", domain=DOMAIN)
def quantized_attention(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Attention whose projection is a product of quantised matrices."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.int(name, 0):
            raise node.error(f"attribute '{name}' is {node.int(name, 0)}", "0")
    product = integer_product(node, g, node.input(0), node.optional(6), node.input(1), node.optional(7))
    x = _in_floats(g, product, node.input(3), node.input(4), node.input(2))
    return projected_attention(node, g, x, (5, 8, 10))


@converts("QGemm", domain=DOMAIN)
def quantized_gemm(node: Node, g: GraphBuilder) -> Tensor:
    """`alpha * A' B' + C` of quantised matrices and an int32 C, in floats or quantised again."""
    a, b, c = node.input(0), node.input(3), node.optional(6)
    a = g.transpose(a, (1, 0)) if node.flag("transA") else a
    b = g.transpose(b, (1, 0)) if node.flag("transB") else b
    total = integer_product(node, g, a, node.input(2), b, node.input(5))
    total = total if c is None else g.add(total, c)
    factor = g.mul(g.mul(node.input(1), node.input(4)), node.float("alpha", 1.0))
    y = g.mul(g.cast(total, f32), factor)
    return y if node.optional(7) is None else _quantized(g, y, node.input(7), node.optional(8), a.element)


def _real(g: GraphBuilder, node: Node, first: int) -> Tensor:
    """The floats of a quantised input, whose scale and zero point follow it."""
    x, scale, zero = node.input(first), node.input(first + 1), node.optional(first + 2)
    return _dequantized(g, x, scale, zero)


def _dequantized(g: GraphBuilder, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    wide = g.cast(x, i32)
    centred = wide if zero is None else g.sub(wide, g.cast(g.reshape(zero, ()), i32))
    return g.mul(g.cast(centred, f32), g.reshape(scale, ()))


def _quantized(g: GraphBuilder, x: Tensor, scale: Tensor, zero: Tensor | None, to: Attribute) -> Tensor:
    zero = None if zero is None else g.reshape(zero, ())
    return rounded(g, g.div(x, g.reshape(scale, ())), zero, to)


def _binary(kind: str) -> Callable[[Node, GraphBuilder], Tensor]:
    def convert(node: Node, g: GraphBuilder) -> Tensor:
        y = g.binary(kind, _real(g, node, 0), _real(g, node, 3))
        return _quantized(g, y, node.input(6), node.optional(7), node.input(0).element)

    return convert


converts("QLinearAdd", domain=DOMAIN)(_binary("add"))
converts("QLinearMul", domain=DOMAIN)(_binary("mul"))


def _requantized(node: Node, g: GraphBuilder, y: Tensor) -> Tensor:
    """A function of the first input, in the scale and the zero point of inputs 3 and 4."""
    return _quantized(g, y, node.input(3), node.optional(4), node.input(0).element)


@converts("QLinearSigmoid", domain=DOMAIN)
def quantized_sigmoid(node: Node, g: GraphBuilder) -> Tensor:
    """Of each element."""
    return _requantized(node, g, g.unary("sigmoid", _real(g, node, 0)))


@converts("QLinearLeakyRelu", domain=DOMAIN)
def quantized_leaky_relu(node: Node, g: GraphBuilder) -> Tensor:
    """`x < 0 ? alpha * x : x`."""
    x = _real(g, node, 0)
    return _requantized(node, g, g.where(g.binary("lt", x, 0), g.mul(x, node.float("alpha", 0.01)), x))


@converts("QLinearSoftmax", domain=DOMAIN)
def quantized_softmax(node: Node, g: GraphBuilder) -> Tensor:
    """Along one dimension, as from opset 13 on."""
    if node.int("opset", 13) < 13:
        raise node.error(f"attribute 'opset' is {node.int('opset', 13)}", "13 and later")
    x = _real(g, node, 0)
    return _requantized(node, g, softmax_along(g, x, node.axis(node.int("axis", -1), x.rank), log=False))


@converts("QLinearGlobalAveragePool", domain=DOMAIN)
def quantized_global_average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The mean of each channel of each image."""
    x, last = _real(g, node, 0), node.flag("channels_last")
    if x.rank < 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3 and more")
    dims = range(1, x.rank - 1) if last else range(2, x.rank)
    return _requantized(node, g, g.reduce("mean", x, dims, keep=True))


@converts("QLinearAveragePool", domain=DOMAIN)
def quantized_average_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The mean of each window."""
    x, last = _real(g, node, 0), node.flag("channels_last")
    moved = _channels_first(g, x) if last else x
    y = average_pool(node.of(moved), g)
    return _requantized(node, g, _channels_last(g, y) if last else y)


@converts("QLinearConcat", domain=DOMAIN)
def quantized_concat(node: Node, g: GraphBuilder) -> Tensor:
    """Each operand with its scale and zero point; the result's come first."""
    if len(node) < 5 or (len(node) - 2) % 3:
        raise node.error(f"{len(node)} inputs", "a scale and a zero point, then three inputs for each operand")
    parts = [_real(g, node, n) for n in range(2, len(node), 3)]
    y = g.concat(parts, node.axis(node.int("axis", 0), parts[0].rank))
    return _quantized(g, y, node.input(0), node.input(1), node.input(2).element)


@converts("NhwcMaxPool", domain=DOMAIN)
def nhwc_max_pool(node: Node, g: GraphBuilder) -> Tensor:
    """The largest number of each window, of images whose channels come last."""
    return _channels_last(g, max_pool(node.of(_channels_first(g, node.input())), g)[0])


def _channels_first(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def _channels_last(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.transpose(x, (0, *range(2, x.rank), 1))
