"""The forms of the operators between convolutions of images in blocks of channels.

Each rule takes forms `[N, C / lanes, spatial..., lanes]` and gives the operations that compute the form of an
operator's result, the last of which gives it; or none where there is no such form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from xdsl.dialects.builtin import TensorType, bf16, f32, i1
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import (
    BinaryOp,
    CastOp,
    ComputeOp,
    ConcatOp,
    ConvOp,
    Operator,
    PackedConvOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
    WinogradConvOp,
)
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, int_list
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.winograd import KERNEL, OUTPUTS, Matrix, filtering
from treadle.passes.graph.layout.blocked_convolutions import (
    CHANNELS,
    Blocks,
    blocked_definition,
    dense,
    depthwise,
    grouped,
    has_groups_of_blocks,
    is_dense,
    is_depthwise,
)
from treadle.passes.graph.layout.channels_last import Form, Layout
from treadle.passes.graph.packed_tiles import panels_of
from treadle.passes.graph.rewriting import Array, constant_of, constant_op, shape_of, tensor

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
    is_plain = op.type.get_element_type() == bf16 and len(op.shape) == 4 and is_dense(op)
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


_MOST_WASTE, _MOST_WASTE_OF_TILES = 4 / 3, 2
"""Channels of whole blocks for each channel that there is, at most; a matrix unit computes whole tiles in any case."""


@dataclass(frozen=True)
class BlockedChannels(Layout):
    """Images `[N, C / lanes, spatial..., lanes]`.

    outputs_of: the outputs along a dimension of a tile in which a convolution that has tiles is computed; None for one
        that is computed directly
    elements: the element types of images
    packs: whether dense convolutions of bf16 take a matrix unit's panels, for which lanes are BLOCK
    """

    lanes: int
    outputs_of: Callable[[ConvOp], int | None] = lambda _: None
    elements: Sequence[Attribute] = (f32,)
    packs: bool = False

    @property
    def _blocks(self) -> Blocks:
        return Blocks(CHANNELS, self.lanes)

    def enter(self, value: SSAValue) -> Sequence[Operation]:
        return self._blocks.enter(value)

    def leave(self, form: SSAValue, shape: Sequence[int]) -> Sequence[Operation]:
        return self._blocks.leave(form, shape)

    def form_of(
        self, op: Operator | ComputeOp, form: Form, has_form: Callable[[SSAValue], bool]
    ) -> Sequence[Operation]:
        if op.type.get_element_type() not in self.elements or not self._fills_blocks(op.shape[CHANNELS]):
            return []
        if isinstance(op, ConvOp):
            return self._convolution(op, form, has_form)
        if isinstance(op, CastOp):
            return [CastOp(form(op.x), op.type.get_element_type())] if has_form(op.x) else []
        if isinstance(op, UnaryOp | BinaryOp | WhereOp):
            return self._elementwise(op, form, has_form)
        if isinstance(op, PoolOp):
            return [blocked_definition(op, self._blocks, {op.x: (form(op.x), self._blocks)})]
        if isinstance(op, ComputeOp):
            return self._computation(op, form, has_form)
        if isinstance(op, ConcatOp):
            return self._concat(op, form)
        if isinstance(op, SliceOp):
            return self._slice(op, form)
        if isinstance(op, PadOp):
            return self._pad(op, form)
        if isinstance(op, ResizeOp) and _keeps_channels(op):
            return [ResizeOp(form(op.x), self._blocks.shape(op.shape))]
        if isinstance(op, ReductionOp) and _is_of_pixels(op):
            return [ReductionOp(op.kind.data, form(op.x), int_list(op.properties, "dims"), bool(op.keep.value.data))]
        if isinstance(op, ReshapeOp) and _keeps_channels(op):
            return [ReshapeOp(form(op.x), self._blocks.shape(op.shape))]
        return []

    def value_of(self, op: Operator | ComputeOp, x: SSAValue) -> Sequence[Operation]:
        n, blocks, *spatial, lanes = shape_of(x)
        if len(op.shape) != CHANNELS + 1:
            return []
        if isinstance(op, ReductionOp) and _is_of_pixels(op) and not op.keep.value.data:
            ops: list[Operation] = [ReductionOp(op.kind.data, x, int_list(op.properties, "dims"), keep=False)]
        elif isinstance(op, ReshapeOp) and prod(spatial) == 1 and _keeps_channels(op):
            ops = []
        else:
            return []
        rows = ReshapeOp(ops[-1].results[0] if ops else x, [n, blocks * lanes])
        return [*ops, rows, SliceOp(rows.result, [0, 0], op.shape, [1, 1])]

    def _fills_blocks(self, channels: int) -> bool:
        most = _MOST_WASTE_OF_TILES if self.packs else _MOST_WASTE
        return ceil(channels / self.lanes) * self.lanes <= most * channels

    def _convolution(self, op: ConvOp, form: Form, has_form: Callable[[SSAValue], bool]) -> list[Operation]:
        if is_dense(op):
            blocked = has_form(op.x) or shape_of(op.x)[CHANNELS] % self.lanes == 0
            if self.packs and has_panels(op) and (blocked or self._fills_blocks(shape_of(op.x)[CHANNELS])):
                return packed(op, form(op.x))
            if self.packs and has_panels(op) and has_few_channels(op):
                return packed_rows(op)
            is_wide = op.type.get_element_type() == f32
            outputs = self.outputs_of(op) if blocked and is_wide and has_tiles(op) else None
            if outputs is not None:
                return in_tiles(op, form(op.x), outputs)
            return dense(op, form(op.x) if blocked else op.x, self.lanes)
        if has_groups_of_blocks(op, self.lanes):
            return grouped(op, form(op.x), self.lanes)
        return depthwise(op, form(op.x), self.lanes) if is_depthwise(op) and has_form(op.x) else []

    def _elementwise(
        self, op: UnaryOp | BinaryOp | WhereOp, form: Form, has_form: Callable[[SSAValue], bool]
    ) -> list[Operation]:
        images = [x for x in op.operands if has_form(x) and len(shape_of(x)) == len(op.shape)]
        if not images or any(tensor(x).get_element_type() not in (*self.elements, i1) for x in op.operands):
            return []
        new: list[Operation] = []

        def operand(x: SSAValue) -> SSAValue:
            if len(shape_of(x)) == len(op.shape) and shape_of(x)[CHANNELS] == op.shape[CHANNELS]:
                return form(x)
            if prod(shape_of(x)) > 1:
                new.extend(self._aligned(x, len(op.shape)))
                return new[-1].results[0]
            return x

        operands = [operand(x) for x in op.operands]
        type = TensorType(op.type.get_element_type(), self._blocks.shape(op.shape))
        return [*new, op.__class__.create(operands=operands, result_types=[type], properties=op.properties)]

    def _aligned(self, x: SSAValue, rank: int) -> list[Operation]:
        """An operand that is broadcast, for example `[C, 1, 1]`, as it broadcasts to a form."""
        shape = (*[1] * (rank - len(shape_of(x))), *shape_of(x))
        whole = ReshapeOp(x, shape)
        if shape[CHANNELS] > 1:
            return [whole, *self._blocks.enter(whole.result)]
        return [whole, ReshapeOp(whole.result, [*shape, 1])]

    def _computation(self, op: ComputeOp, form: Form, has_form: Callable[[SSAValue], bool]) -> list[Operation]:
        """The definition of an operator on images with other operands beside them, such as a padded average pooling;
        in whole blocks, since other operands have nothing for lanes beyond them."""
        images = [x for x in op.tensors() if has_form(x) and shape_of(x)[:2] == op.shape[:2]]
        if not images or op.shape[CHANNELS] % self.lanes or any(len(shape_of(x)) != len(op.shape) for x in images):
            return []
        return [blocked_definition(op, self._blocks, {x: (form(x), self._blocks) for x in images})]

    def _concat(self, op: ConcatOp, form: Form) -> list[Operation]:
        """Of whole blocks, or of pixels."""
        dim = op.dim.value.data
        if dim == CHANNELS and any(shape_of(x)[CHANNELS] % self.lanes for x in op.inputs[:-1]):
            return []
        return [ConcatOp([form(x) for x in op.inputs], dim)]

    def _slice(self, op: SliceOp, form: Form) -> list[Operation]:
        """Of whole blocks, or of pixels."""
        starts, steps = (list(int_list(op.properties, name)) for name in ("starts", "steps"))
        if starts[CHANNELS] % self.lanes or steps[CHANNELS] != 1:
            return []
        starts[CHANNELS] //= self.lanes
        shape = self._blocks.shape(op.shape)
        return [SliceOp(form(op.x), [*starts, 0], shape, [*steps, 1])]

    def _pad(self, op: PadOp, form: Form) -> list[Operation]:
        """Of pixels."""
        pads, rank = list(int_list(op.properties, "pads")), len(op.shape)
        if pads[CHANNELS] or pads[rank + CHANNELS]:
            return []
        return [PadOp(op.mode.data, form(op.x), op.value, [*pads[:rank], 0, *pads[rank:], 0])]


def _is_of_pixels(op: ReductionOp) -> bool:
    """Whether a reduction leaves the images and the channels."""
    return all(d > CHANNELS for d in int_list(op.properties, "dims"))


def _keeps_channels(op: ReshapeOp | ResizeOp) -> bool:
    """Whether an operator changes pixels only."""
    return shape_of(op.x)[: CHANNELS + 1] == op.shape[: CHANNELS + 1]
