"""GatherBlockQuantized: slices of a table that is quantised in blocks, as floats."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32

from treadle.dialects.graph.dtypes import ui8
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.converters.microsoft.blocks import unpacked
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts


@converts("GatherBlockQuantized", domain=DOMAIN)
def gather_block_quantized(node: Node, g: GraphBuilder) -> Tensor:
    """`(number - zero) * scale` of the numbers that a Gather along `gather_axis` chooses, with a scale and a zero point
    for each `block_size` of them along `quantize_axis`. Bytes hold several numbers of the last dimension, the first in
    the lowest bits; their zero point is in the middle where there is none, that of integers of 4 bits is 0.
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
    rows = _numbers(node, g, g.gather(data, indices, axis), bits if is_bytes else 8)
    wide = g.cast(rows, i32)
    if zeros is not None:
        _check(node, zeros, data, blocks, packing)
        zero = g.cast(_numbers(node, g, g.gather(zeros, indices, axis), bits if is_bytes else 8), i32)
        zero = g.narrow(zero, chosen, 0, blocks[along])
        wide = g.sub(wide, _repeated(g, zero, chosen, block, wide.shape[chosen]))
    elif is_bytes:
        wide = g.sub(wide, 1 << bits - 1)
    by = _repeated(g, g.gather(scales, indices, axis), chosen, block, wide.shape[chosen])
    return g.mul(g.cast(wide, scales.element), by)


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


__all__ = ["gather_block_quantized"]
