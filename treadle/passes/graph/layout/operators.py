"""The channels-last forms of the operators between convolutions.

Each rule takes operands `[N, spatial..., C]` and gives the operations that compute an operator's result in the same
form, the last of which gives that result; or none where there is no such form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import (
    BinaryOp,
    BroadcastOp,
    CastOp,
    ComputeOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    Operator,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.layout.convolutions import convolution, image_with_more_channels, transposed_convolution
from treadle.passes.graph.layout.images import Form
from treadle.passes.graph.layout.permutations import permuted, permuted_definition, to_last
from treadle.passes.graph.rewriting import shape_of


def channels_last(op: Operator | ComputeOp, last: Form, has_form: Callable[[SSAValue], bool]) -> list[Operation]:
    """The operations that compute an operator's channels-last form.

    has_form: whether a value's form is known; others are transposed if the operator asks for them with `last`
    """
    if isinstance(op, ConvOp):
        image = image_with_more_channels(op)
        return [*image, *convolution(op, image[-1].results[0] if image else last(op.x))]
    if isinstance(op, ConvTransposeOp):
        return transposed_convolution(op, last(op.x))
    if isinstance(op, ComputeOp):
        return _computation(op, last, has_form)
    if isinstance(op, UnaryOp | CastOp | BinaryOp | WhereOp):
        return _elementwise(op, last)
    if isinstance(op, ConcatOp):
        return [ConcatOp([last(x) for x in op.inputs], to_last(len(op.shape)).index(op.dim.value.data))]
    if isinstance(op, PoolOp):
        order = to_last(len(op.shape))
        return [permuted_definition(op, order, {op.x: (last(op.x), order)})]
    if isinstance(op, PadOp | SliceOp | ResizeOp):
        return [_moved(op, last(op.x))]
    if isinstance(op, BroadcastOp) and len(shape_of(op.x)) == len(op.shape):
        return [BroadcastOp(last(op.x), permuted(op.shape, to_last(len(op.shape))))]
    if isinstance(op, ReductionOp):
        return _reduction(op, last)
    return _reshape(op, last) if isinstance(op, ReshapeOp) else []


def _elementwise(op: UnaryOp | CastOp | BinaryOp | WhereOp, last: Form) -> list[Operation]:
    """The same operator on permuted operands; those of lower rank are permuted as they broadcast."""
    rank, new = len(op.shape), list[Operation]()

    def operand(x: SSAValue) -> SSAValue:
        shape = shape_of(x)
        if len(shape) == rank and (prod(shape) > 1 or prod(op.shape) == 1):
            return last(x)
        if prod(shape) == 1 and len(shape) < rank:
            return x
        new.extend(_aligned(x, rank))
        return new[-1].results[0]

    operands = [operand(x) for x in op.operands]
    type = TensorType(op.type.get_element_type(), permuted(op.shape, to_last(rank)))
    return [*new, op.__class__.create(operands=operands, result_types=[type], properties=op.properties)]


def _aligned(x: SSAValue, rank: int) -> list[Operation]:
    """An operand of fewer dimensions, for example `[C, 1, 1]`, as it broadcasts to `[N, spatial..., C]`."""
    shape = shape_of(x)
    whole = ReshapeOp(x, [*[1] * (rank - len(shape)), *shape])
    transposed = TransposeOp(whole.result, to_last(rank))
    first = next((d for d, extent in enumerate(transposed.shape) if extent != 1), rank)
    return [whole, transposed, ReshapeOp(transposed.result, transposed.shape[first:])]


def _moved(op: PadOp | SliceOp | ResizeOp, x: SSAValue) -> Operation:
    rank = len(op.shape)
    order = to_last(rank)
    if isinstance(op, ResizeOp):
        return ResizeOp(x, permuted(op.shape, order))
    if isinstance(op, SliceOp):
        starts, sizes, steps = (permuted(int_list(op.properties, n), order) for n in ("starts", "sizes", "steps"))
        return SliceOp(x, starts, sizes, steps)
    pads = int_list(op.properties, "pads")
    return PadOp(op.mode.data, x, op.value, [*permuted(pads[:rank], order), *permuted(pads[rank:], order)])


def _reduction(op: ReductionOp, last: Form) -> list[Operation]:
    """A reduction that leaves the batch and the channels, each of them whole or of extent 1."""
    order, dims = to_last(len(shape_of(op.x))), int_list(op.properties, "dims")
    keep = bool(op.keep.value.data)
    if len(op.shape) < 3 or (not keep and min(dims) < 2):
        return []
    return [ReductionOp(op.kind.data, last(op.x), sorted(order.index(d) for d in dims), keep)]


def _reshape(op: ReshapeOp, last: Form) -> list[Operation]:
    """A reshape of spatial dimensions only."""
    source, shape = shape_of(op.x), op.shape
    if len(shape) < 3 or source[:2] != shape[:2]:
        return []
    return [ReshapeOp(last(op.x), permuted(shape, to_last(len(shape))))]


def _computation(op: ComputeOp, last: Form, has_form: Callable[[SSAValue], bool]) -> list[Operation]:
    """The definition of an operator on images with other operands beside them, such as a padded average pooling."""
    order = to_last(len(op.shape))
    images = [x for x in op.tensors() if has_form(x) and shape_of(x)[:2] == op.shape[:2]]
    if not images or any(len(shape_of(x)) != len(op.shape) for x in images):
        return []
    return [permuted_definition(op, order, {x: (last(x), order) for x in images})]


def folded_to_rows(op: Operation, x: SSAValue) -> list[Operation]:
    """A reduction of `x`, `[N, spatial..., C]`, whose result has the same dimensions in either order: `[N, C]`."""
    if not isinstance(op, ReductionOp) or op.keep.value.data:
        return []
    rank, dims = len(shape_of(op.x)), int_list(op.properties, "dims")
    order = to_last(rank)
    left = [d for d in range(rank) if d not in dims]
    if left != [d for d in order if d in left]:
        return []
    return [ReductionOp(op.kind.data, x, sorted(order.index(d) for d in dims), keep=False)]


__all__ = ["channels_last", "folded_to_rows"]
