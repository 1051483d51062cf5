"""The forms of the operators between convolutions of images in blocks of channels.

Each rule takes forms `[N, C / lanes, spatial..., lanes]` and gives the operations that compute the form of an
operator's result, the last of which gives it; or none where there is no such form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod

from xdsl.dialects.builtin import TensorType, f32, i1
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import (
    BinaryOp,
    CastOp,
    ComputeOp,
    ConcatOp,
    ConvOp,
    Operator,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.layout.blocked_convolutions import (
    CHANNELS,
    dense,
    depthwise,
    grouped,
    has_groups_of_blocks,
    is_dense,
    is_depthwise,
)
from treadle.passes.graph.layout.blocks import Blocks, blocked_definition
from treadle.passes.graph.layout.images import Form, Layout
from treadle.passes.graph.layout.packed_convolutions import (
    has_few_channels,
    has_panels,
    packed,
    packed_rows,
)
from treadle.passes.graph.layout.winograd import has_tiles, in_tiles
from treadle.passes.graph.rewriting import shape_of, tensor

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


__all__ = ["BlockedChannels"]
