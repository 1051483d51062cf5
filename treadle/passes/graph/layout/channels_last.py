"""Images `[N, spatial..., C]`: convolutions of them are matrix products where tensor cores would take them, else their
definition.

The terms of a product are `(kernel..., C)`: consecutive terms are consecutive channels, which one access reads.
"""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import (
    CastOp,
    ComputeOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
    Operator,
    ReductionOp,
    ReshapeOp,
    TransposeOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.dtypes import byte_width
from treadle.passes.graph.layout.images import Form, HasForm, ImageLayout
from treadle.passes.graph.layout.layout import Layout, definition_in, filters, windows, zeros_after
from treadle.passes.graph.rewriting import shape_of, tensor

_TOGETHER = 4
"""Consecutive channels, of 2 bytes each, that an asynchronous copy of 8 bytes moves."""

_WIDE = 8
"""Channels of a group from which it becomes a product: half of the narrowest tile's columns; and, at 2 bytes each, one
copy."""


def last(rank: int) -> Layout:
    """`[N, C, spatial...]` as `[N, spatial..., C]`."""
    return Layout((0, *range(2, rank), 1))


class ChannelsLast(ImageLayout):
    """Images `[N, spatial..., C]`."""

    def of(self, rank: int) -> Layout:
        return last(rank)

    def convolution(self, op: ConvOp | ConvTransposeOp, form: Form, has_form: HasForm) -> list[Operation]:
        if isinstance(op, ConvTransposeOp):
            return transposed_convolution(op, form(op.x))
        image = image_with_more_channels(op)
        return [*image, *convolution(op, image[-1].results[0] if image else form(op.x))]

    def value_of(self, op: Operator | ComputeOp, x: SSAValue) -> list[Operation]:
        """A reduction whose result has the same dimensions in either order: `[N, C]`."""
        if not isinstance(op, ReductionOp) or op.keep.value.data:
            return []
        order, dims = last(len(shape_of(op.x))).order, int_list(op.properties, "dims")
        left = [d for d in order if d not in dims]
        if left != sorted(left):
            return []
        return [ReductionOp(op.kind.data, x, sorted(order.index(d) for d in dims), keep=False)]


def convolution(op: ConvOp, x: SSAValue) -> list[Operation]:
    """The operations of which the last gives the convolution of `x`, `[N, spatial..., C]`, in the same order of
    dimensions. `x` may have more channels than the filters, all of them 0."""
    groups = op.groups.value.data
    if groups > 1 and not _has_wide_groups(op):
        return _by_definition(op, x)
    n, oc, *spatial = op.shape
    rank, channels = len(op.shape), shape_of(x)[-1] // groups
    terms = Layout((*range(1, rank - 1), 0))
    columns = filters(op, terms, channels)
    if groups == 1 and is_pointwise(op):
        rows: Operation = ReshapeOp(x, [n * prod(spatial), channels])
    else:
        rows = windows(op, x, last(rank), terms, channels)
    product = MatmulOp(rows.results[0], columns[-1].results[0])
    together = [TransposeOp(product.result, [1, 0, 2])] if groups > 1 else []
    return [rows, *columns, product, *together, ReshapeOp((together or [product])[0].result, [n, *spatial, oc])]


def _has_wide_groups(op: ConvOp) -> bool:
    """Whether a group's channels, in and out, are enough for a tile of a product."""
    oc, channels, *_ = shape_of(op.w)
    return min(channels, oc // op.groups.value.data) >= _WIDE


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
    image = last(len(op.shape)).enter(cast.x)
    extended = zeros_after(image[-1].results[0], len(op.shape) - 1, more - channels)
    return [*image, *extended, CastOp(extended[-1].results[0], cast.to)]


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
    columns = ReshapeOp(transposed.result, [ic, prod(kernel) * oc])
    product = MatmulOp(rows.result, columns.result)
    apart = ReshapeOp(product.result, [n, *source, *kernel, oc])
    pairs = [axis for d in range(rank) for axis in (1 + d, 1 + rank + d)]
    shuffled = TransposeOp(apart.result, [0, *pairs, 1 + 2 * rank])
    image = ReshapeOp(shuffled.result, [n, *op.shape[2:], oc])
    return [rows, transposed, columns, product, apart, shuffled, image]


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
    # [OC, C / groups, kernel...], or [C, OC / groups, kernel...], to [kernel..., the second, the first].
    image, weights = last(len(op.shape)), Layout((*range(2, len(op.shape)), 1, 0))
    turned = weights.enter(op.w)
    return [*turned, definition_in(op, image, {op.x: (x, image), op.w: (turned[-1].results[0], weights)})]
