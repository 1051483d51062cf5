"""Dense convolutions of images in blocks of channels by filters that are transformed when a model is compiled: in
Winograd's tiles, or by panels of a matrix unit.

Operations are detached; the last of several gives the form of a convolution's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

import numpy as np
from xdsl.dialects.builtin import TensorType, bf16
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import CastOp, ConvOp, PackedConvOp, PadOp, TransposeOp, WinogradConvOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, int_list
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.winograd import KERNEL, OUTPUTS, Matrix, filtering
from treadle.passes.graph.packed_tiles import panels_of
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of

# Whether a convolution is faster directly or in tiles, by the work that each takes.
#
# The unit of work is the time of a term of a product. What else takes how long was fitted to a run of `python -m
# benchmarks.winograd` on a Xeon with AVX-512 (2 MiB of second cache a core), two threads
# (`benchmarks/results/winograd-2026-11-24.json`). Of the ten geometries of 3x3 filters and stride 1 in ResNet-50 and
# Inception-V3, F(2x2) is faster for seven, all of which are chosen, and takes 1.3 to 2 times as long for the others. A
# Zen 3 with AVX2, where a convolution was three kernels, took 0.9 of the direct time for one of these three, and 0.6
# for another (`winograd-2026-11-23.json`); it was not measured again.

_DIRECT = 1.03
"""A term of a direct convolution, whose windows lie in several rows of an image and overlap."""
_TRANSFORM: Mapping[int, float] = {2: 24.0, 4: 60.0}
"""An element of a tile of an image, or of products, that is transformed, written and read again, by the outputs of a
tile: tiles of large images leave the second cache in between."""
_FILTER, _FILTER_OF_TILES = 7.0, 30.0
"""An element of the filters, which come from memory once a call; few terms use one of those of tiles meanwhile."""


def outputs_by_work(op: ConvOp, most: int) -> int | None:
    """The outputs, at most so many, along a dimension of the tiles that take the least work, for a convolution that has
    tiles; None where that is the direct way."""
    ways = [None, *(outputs for outputs in OUTPUTS if outputs <= most)]
    return min(ways, key=lambda outputs: estimated_work(op, outputs))


def estimated_work(op: ConvOp, outputs: int | None) -> float:
    """The work of a convolution of 3x3 filters: directly, or in tiles of some outputs."""
    (n, oc, *spatial), ic = op.shape, shape_of(op.w)[1]
    if outputs is None:
        return KERNEL**2 * oc * ic * (_DIRECT * n * prod(spatial) + _FILTER)
    products = filtering(outputs).tile ** 2
    tiles = n * prod(ceil(extent / outputs) for extent in spatial)
    return products * (oc * ic * (tiles + _FILTER_OF_TILES) + _TRANSFORM[outputs] * tiles * (ic + oc))


# Dense convolutions of 3x3 filters as Winograd's, whose filters are transformed here, in float64, and rounded once.
#
# Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.


def has_tiles(op: ConvOp) -> bool:
    """Whether a convolution is one of 3x3 filters that are constant and finite, of one group, stride and dilation 1."""
    strides, dilations = (int_list(op.properties, name) for name in ("strides", "dilations"))
    plain = strides == dilations == (1, 1) and op.groups.value.data == 1
    if not plain or shape_of(op.w)[2:] != (KERNEL, KERNEL):
        return False
    weights = constant_of(op.w)
    return weights is not None and bool(np.isfinite(weights).all())


def in_tiles(op: ConvOp, x: SSAValue, outputs: int) -> list[Operation]:
    """The operations of which the last gives the form of a convolution in tiles of `outputs` by `outputs` of an image
    whose form is `x`, `[N, blocks, H, W, lanes]`."""
    weights = constant_of(op.w)
    assert weights is not None, "has_tiles asks for constant filters"
    filters = constant_op(_transformed(weights, outputs, -op.shape[1] % shape_of(x)[-1]))
    return [filters, WinogradConvOp(x, filters.result, outputs, int_list(op.properties, "pads"))]


def _transformed(weights: Array, outputs: int, missing: int) -> Array:
    """Filters `[OC, C, 3, 3]` as `[products, C, OC + missing]`; those that are missing are zeros."""
    transform = _array(filtering(outputs).filter)
    oc, ic, *_ = weights.shape
    tiles = np.einsum("pi,qj,ocij->pqco", transform, transform, weights.astype(np.float64))
    matrices = tiles.reshape(prod(tiles.shape[:2]), ic, oc).astype(weights.dtype)
    return np.ascontiguousarray(np.pad(matrices, [(0, 0), (0, 0), (0, missing)]))


def _array(matrix: Matrix) -> Array:
    return np.array([[float(value) for value in row] for row in matrix])


# Dense convolutions of images in blocks of channels, by filters in panels of a CPU core's matrix unit.

BLOCK = 32
"""Channels of bf16 that a row of a tile holds: those of a block of images."""


def has_panels(op: ConvOp) -> bool:
    """Whether a convolution is a dense one of bf16, of two dimensions, by constant filters."""
    is_plain = op.type.get_element_type() == bf16 and len(op.shape) == 4 and op.groups.value.data == 1
    return is_plain and constant_of(op.w) is not None


def has_few_channels(op: ConvOp) -> bool:
    """Whether the pixels under a row of the window fit into a block."""
    return shape_of(op.w)[-1] * _lanes_of_pixel(op) <= BLOCK


def _lanes_of_pixel(op: ConvOp) -> int:
    """The channels, up to a power of two."""
    return 1 << (shape_of(op.w)[1] - 1).bit_length()


def packed_rows(op: ConvOp) -> list[Operation]:
    """The same of an image `[N, C, H, W]` of few channels, as a convolution of windows of one column: a row of the
    window is a pixel's block of channels."""
    weights = constant_of(op.w)
    assert weights is not None, "has_panels asks for constant filters"
    oc, c, height, width = shape_of(op.w)
    lanes = _lanes_of_pixel(op)
    strides, pads, dilations = (int_list(op.properties, name) for name in ("strides", "pads", "dilations"))
    # A pixel's channels are neighbours, and so are pixels; those that a whole block holds are there.
    needed = (op.shape[3] - 1) * strides[1] + (BLOCK // lanes - 1) * dilations[1] + 1
    after = max(pads[3], needed - shape_of(op.x)[3] - pads[1])
    zero = constant_op(np.zeros((), numpy_dtype(bf16)))
    turned = TransposeOp(op.x, [0, 2, 3, 1])
    pixels = PadOp("constant", turned.result, zero.result, [0, 0, pads[1], 0, 0, 0, after, lanes - c])

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, _, row, column, lane = index
        offset = b.mul(b.div(lane, lanes), dilations[1])
        return b.at(pixels.result, [n, row, b.add(b.mul(column, strides[1]), offset), b.mod(lane, lanes)])

    n, _, rows, _ = shape_of(op.x)
    blocks = compute_of(TensorType(bf16, [n, 1, rows, op.shape[3], BLOCK]), element, "im2col")
    filters = np.zeros((oc, width, lanes, height), np.uint16)
    filters[:, :, :c] = weights.view(np.uint16).transpose(0, 3, 1, 2)
    panels = constant_op(panels_of(_rows(filters.reshape(oc, -1, height, 1).view(weights.dtype))))
    panels.result.name_hint = op.w.name_hint
    extents, vertical = (width * lanes, oc), [(strides[0], 1), (pads[0], 0, pads[2], 0), (dilations[0], 1)]
    total = PackedConvOp(blocks.result, panels.result, extents, (height, 1), *vertical)
    return [zero, turned, pixels, blocks, panels, total, CastOp(total.result, bf16)]


def packed(op: ConvOp, x: SSAValue) -> list[Operation]:
    """The operations of which the last gives the form of a convolution of an image whose form is `x`."""
    weights = constant_of(op.w)
    assert weights is not None, "has_panels asks for constant filters"
    panels = constant_op(panels_of(_rows(weights)))
    panels.result.name_hint = op.w.name_hint
    oc, ic, *kernel = shape_of(op.w)
    strides, pads, dilations = (int_list(op.properties, name) for name in ("strides", "pads", "dilations"))
    total = PackedConvOp(x, panels.result, (ic, oc), kernel, strides, pads, dilations)
    return [panels, total, CastOp(total.result, bf16)]


def _rows(weights: Array) -> Array:
    """Filters `[OC, C, KH, KW]` as `[blocks * KH * KW * BLOCK, OC]`; those of channels that are missing are zeros."""
    oc, ic, *kernel = weights.shape
    whole = np.zeros((oc, -(-ic // BLOCK) * BLOCK, *kernel), weights.dtype)
    whole[:, :ic] = weights
    # Of integers, since NumPy moves elements of other libraries' types one by one.
    bits = whole.view(np.uint16).reshape(oc, -1, BLOCK, *kernel).transpose(1, 3, 4, 2, 0)
    return np.ascontiguousarray(bits).reshape(whole.shape[1] * prod(kernel), oc).view(weights.dtype)
