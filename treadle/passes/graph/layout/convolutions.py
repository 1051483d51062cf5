"""Convolutions of images `[N, spatial..., C]`: as matrix products where tensor cores would take them, else as their
definition.

Rows of a product are pixels of all images, columns output channels, and its terms `(kernel..., C)`: consecutive terms
are consecutive channels, which one access reads. Source: Chetlur et al., "cuDNN: Efficient primitives for deep
learning", 2014, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import CastOp, ConvOp, ConvTransposeOp, MatmulOp, PadOp, ReshapeOp, TransposeOp
from treadle.dialects.graph.compute import ComputeOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, int_list
from treadle.dialects.graph.dtypes import byte_width, numpy_dtype
from treadle.dialects.graph.linear import padded_at
from treadle.passes.graph.layout.permutations import permuted_definition, to_last
from treadle.passes.graph.rewriting import constant_op, shape_of, tensor

_TOGETHER = 4
"""Consecutive channels, of 2 bytes each, that an asynchronous copy of 8 bytes moves."""

_WIDE = 8
"""Channels of a group from which it becomes a product: half of the narrowest tile's columns; and, at 2 bytes each, one
copy."""


def convolution(op: ConvOp, x: SSAValue) -> list[Operation]:
    """The operations of which the last gives the convolution of `x`, `[N, spatial..., C]`, in the same order of
    dimensions. `x` may have more channels than the filters, all of them 0."""
    if op.groups.value.data > 1:
        return _grouped(op, x) if _has_wide_groups(op) else _by_definition(op, x)
    n, oc, *spatial = op.shape
    pixels, rank = n * prod(spatial), len(spatial)
    channels = shape_of(x)[-1]
    transposed = TransposeOp(op.w, [*range(2, 2 + rank), 1, 0])
    filters = [transposed, *_extended(transposed.result, rank, channels)]
    terms = prod(shape_of(op.w)[2:]) * channels
    rows = ReshapeOp(x, [pixels, terms]) if is_pointwise(op) else im2col_last(op, x)
    columns = ReshapeOp(filters[-1].results[0], [terms, oc])
    product = MatmulOp(rows.result, columns.result)
    return [rows, *filters, columns, product, ReshapeOp(product.result, [n, *spatial, oc])]


def _has_wide_groups(op: ConvOp) -> bool:
    """Whether a group's channels, in and out, are enough for a tile of a product."""
    oc, channels, *_ = shape_of(op.w)
    return min(channels, oc // op.groups.value.data) >= _WIDE


def _grouped(op: ConvOp, x: SSAValue) -> list[Operation]:
    """A batch of products, one of each group."""
    n, oc, *spatial = op.shape
    groups, channels, kernel = op.groups.value.data, shape_of(op.w)[1], shape_of(op.w)[2:]
    rank, terms = len(spatial), prod(kernel) * channels
    rows = im2col_last(op, x)
    apart = ReshapeOp(op.w, [groups, oc // groups, channels, *kernel])
    transposed = TransposeOp(apart.result, [0, *range(3, 3 + rank), 2, 1])
    filters = ReshapeOp(transposed.result, [groups, terms, oc // groups])
    product = MatmulOp(rows.result, filters.result)
    together = TransposeOp(product.result, [1, 0, 2])
    return [rows, apart, transposed, filters, product, together, ReshapeOp(together.result, [n, *spatial, oc])]


def image_with_more_channels(op: ConvOp) -> list[Operation]:
    """The operations that pad an image of 3 channels to 4, if it is rounded to a narrower type for the convolution
    anyway; else none. The last gives `[N, spatial..., C]`, each pixel of which one copy can then move."""
    cast, channels = op.x.owner, shape_of(op.x)[1]
    more = -(-channels // _TOGETHER) * _TOGETHER
    narrow = byte_width(tensor(op.x).get_element_type()) == 2
    if not isinstance(cast, CastOp) or not narrow or len(list(op.x.uses)) > 1 or op.groups.value.data > 1:
        return []
    if more == channels or 3 * more > 4 * channels:
        return []
    transposed = TransposeOp(cast.x, to_last(len(op.shape)))
    extended = _extended(transposed.result, len(op.shape) - 1, more)
    return [transposed, *extended, CastOp(extended[-1].results[0], cast.to)]


def _extended(x: SSAValue, dim: int, extent: int) -> list[Operation]:
    """Zeros after the end of a dimension up to an extent."""
    shape = shape_of(x)
    missing = extent - shape[dim]
    if not missing:
        return []
    zero = constant_op(np.zeros((), numpy_dtype(tensor(x).get_element_type())))
    after = [missing if d == dim else 0 for d in range(len(shape))]
    return [zero, PadOp("constant", x, zero.result, [*[0] * len(shape), *after])]


def transposed_convolution(op: ConvTransposeOp, x: SSAValue) -> list[Operation]:
    """As `convolution`, for a transposed one. Without overlap it is a product whose columns are shuffled into
    pixels."""
    if not has_no_overlap(op):
        return _by_definition(op, x)
    n, ic, *source = shape_of(op.x)
    _, oc, *kernel = shape_of(op.w)
    rank = len(kernel)
    rows = ReshapeOp(x, [n * prod(source), ic])
    transposed = TransposeOp(op.w, [0, *range(2, 2 + rank), 1])
    filters = ReshapeOp(transposed.result, [ic, prod(kernel) * oc])
    product = MatmulOp(rows.result, filters.result)
    apart = ReshapeOp(product.result, [n, *source, *kernel, oc])
    pairs = [axis for d in range(rank) for axis in (1 + d, 1 + rank + d)]
    shuffled = TransposeOp(apart.result, [0, *pairs, 1 + 2 * rank])
    image = ReshapeOp(shuffled.result, [n, *op.shape[2:], oc])
    return [rows, transposed, filters, product, apart, shuffled, image]


def im2col_last(op: ConvOp, x: SSAValue) -> ComputeOp:
    """The windows of `x`, `[N, spatial..., C]`, as rows `[N * pixels, kernel... * C]`; with groups,
    `[groups, N * pixels, kernel... * C / groups]`."""
    n, _, *spatial = op.shape
    groups, kernel = op.groups.value.data, shape_of(op.w)[2:]
    channels = shape_of(x)[-1] // groups

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        image, *position = b.delinearize(index[-2], [n, *spatial])
        *offset, channel = b.delinearize(index[-1], [*kernel, channels])
        where, conditions = op.input_indices(b, position, offset)
        if groups > 1:
            channel = b.add(b.mul(index[0], channels), channel)
        return padded_at(b, x, [image, *where, channel], conditions)

    shape = [n * prod(spatial), prod(kernel) * channels]
    type = TensorType(tensor(op.x).get_element_type(), [groups, *shape] if groups > 1 else shape)
    return compute_of(type, element, "im2col")


def has_no_overlap(op: ConvTransposeOp) -> bool:
    """Whether each output pixel of a transposed convolution of one group comes from one input pixel."""
    strides, pads, dilations, extra = (
        int_list(op.properties, name) for name in ("strides", "pads", "dilations", "output_padding")
    )
    kernel = shape_of(op.w)[2:]
    plain = not any(pads) and not any(extra) and set(dilations) == {1} and op.groups.value.data == 1
    return plain and strides == tuple(kernel)


def is_pointwise(op: ConvOp) -> bool:
    """Whether each output pixel of a convolution depends on the input pixel at the same position only."""
    strides, pads = int_list(op.properties, "strides"), int_list(op.properties, "pads")
    return prod(shape_of(op.w)[2:]) == 1 and set(strides) == {1} and set(pads) == {0}


def _by_definition(op: ConvOp | ConvTransposeOp, x: SSAValue) -> list[Operation]:
    """The convolution's own definition; neighbouring channels' weights become neighbours, too."""
    rank = len(op.shape)
    channels_last = to_last(rank)
    # [OC, C / groups, kernel...], or [C, OC / groups, kernel...], to [kernel..., the second, the first].
    order = (*range(2, rank), 1, 0)
    transposed = TransposeOp(op.w, order)
    operands = {op.x: (x, channels_last), op.w: (transposed.result, order)}
    return [transposed, permuted_definition(op, channels_last, operands)]


__all__ = [
    "convolution",
    "has_no_overlap",
    "im2col_last",
    "image_with_more_channels",
    "is_pointwise",
    "transposed_convolution",
]
