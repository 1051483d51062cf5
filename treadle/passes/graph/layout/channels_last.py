"""The order of dimensions in which channels are neighbours, and definitions under it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, StringAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    AtOp,
    BinaryOp,
    BroadcastOp,
    CastOp,
    ComputeOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
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
    definition,
)
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, int_list
from treadle.dialects.graph.dtypes import byte_width, numpy_dtype
from treadle.dialects.graph.linear import padded_at
from treadle.passes.graph.graph_define import operator_word
from treadle.passes.graph.rewriting import constant_op, shape_of, tensor

T = TypeVar("T")
Permutation: TypeAlias = tuple[int, ...]
"""Result dimension `d` is source dimension `permutation[d]`, as in `graph.transpose`."""


def to_last(rank: int) -> Permutation:
    """`[N, C, spatial...]` to `[N, spatial..., C]`."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> Permutation:
    """`[N, spatial..., C]` to `[N, C, spatial...]`."""
    return (0, rank - 1, *range(1, rank - 1))


def permuted(values: Sequence[T], permutation: Permutation) -> list[T]:
    """What belongs to each dimension, in the order of the permuted ones."""
    return [values[d] for d in permutation]


def permuted_definition(
    op: Operator | ComputeOp, permutation: Permutation, operands: Mapping[SSAValue, tuple[SSAValue, Permutation]]
) -> ComputeOp:
    """The detached definition of an operator whose result, and some of whose operands, are permuted.

    operands: what replaces an operand, and how it is permuted
    """
    compute = op.clone() if isinstance(op, ComputeOp) else definition(op)
    words = compute.operators if isinstance(op, ComputeOp) else StringAttr(operator_word(op))
    for at in compute.reads():
        if at.source in operands:
            source, order = operands[at.source]
            read = AtOp(source, permuted(at.indices, order), at.predicate, at.otherwise)
            read.location = at.location
            Rewriter.insert_op(read, InsertPoint.before(at))
            Rewriter.replace_op(at, [], [read.result])
    args = compute.body.block.args
    uses = [list(arg.uses) for arg in args]
    for position, d in enumerate(permutation):
        for use in uses[d]:
            use.operation.operands[use.index] = args[position]
    type = TensorType(compute.type.get_element_type(), permuted(compute.shape, permutation))
    body = compute.detach_region(0)
    compute.erase()
    return ComputeOp(body, type, None if words is None else words.data)


# The forms of one function's images in another layout: which there are, where they begin and where they end.

Form = Callable[[SSAValue], SSAValue]
"""A value's form, which is computed from it where it has none."""


class Layout(ABC):
    """A layout of images `[N, C, spatial...]`, and the operators that have a form in it.

    Operations are detached; the last of several gives the result.
    """

    @abstractmethod
    def enter(self, value: SSAValue) -> Sequence[Operation]:
        """The form of a value."""

    @abstractmethod
    def leave(self, form: SSAValue, shape: Sequence[int]) -> Sequence[Operation]:
        """The value, of such a shape, of a form."""

    @abstractmethod
    def form_of(
        self, op: Operator | ComputeOp, form: Form, has_form: Callable[[SSAValue], bool]
    ) -> Sequence[Operation]:
        """The form of an operator's result; none where it has no form.

        has_form: whether a value's form is known; others begin here if the operator asks for them with `form`
        """

    @abstractmethod
    def value_of(self, op: Operator | ComputeOp, x: SSAValue) -> Sequence[Operation]:
        """An operator's result, itself no image, from the form `x` of what it reads; none where there is no way."""


class Images:
    """The forms of one function's values."""

    def __init__(self, block: Block, layout: Layout):
        self.block = block
        self.layout = layout
        self._forms: dict[SSAValue, SSAValue] = {}
        self._left: list[Operation] = []

    def run(self) -> None:
        """Rewrites every operator that reads an image in this form, in order."""
        for op in list(self.block.ops):
            if isinstance(op, Operator | ComputeOp) and self._reads_images(op):
                self._rewrite(op)
        for op in reversed(self._left):
            if not op.results[0].uses:
                Rewriter.erase_op(op)

    def _reads_images(self, op: Operator | ComputeOp) -> bool:
        operands = operands_of(op)
        if any(DYNAMIC_INDEX in shape_of(value) for value in (*operands, op.result)):
            return False
        return isinstance(op, ConvOp | ConvTransposeOp) or any(value in self._forms for value in operands)

    def _rewrite(self, op: Operator | ComputeOp) -> None:
        new: Sequence[Operation] = []
        if len(op.shape) >= 3:
            new = self.layout.form_of(op, self._form, self._forms.__contains__)
        if not new:
            source = next((value for value in operands_of(op) if value in self._forms), None)
            if source is not None and (direct := self.layout.value_of(op, self._forms[source])):
                _replace(op, direct)
            return
        form = new[-1].results[0]
        left = self.layout.leave(form, op.shape)
        self._forms[_replace(op, [*new, *left])] = form
        self._left += left

    def _form(self, value: SSAValue) -> SSAValue:
        """A value's form, begun once where it has none."""
        if value not in self._forms:
            owner = value.owner
            new = self.layout.enter(value)
            for op in new:
                if isinstance(owner, Operation):
                    op.location = owner.location
            point = InsertPoint.after(owner) if isinstance(owner, Operation) else InsertPoint.at_start(self.block)
            Rewriter.insert_op(new, point)
            self._forms[value] = new[-1].results[0]
        return self._forms[value]


def operands_of(op: Operator | ComputeOp) -> Sequence[SSAValue]:
    """The tensors that an operator reads."""
    return op.tensors() if isinstance(op, ComputeOp) else op.operands


def _replace(old: Operator | ComputeOp, new: Sequence[Operation]) -> SSAValue:
    """Replaces an operator by operations, of which the last gives its result."""
    for op in new:
        op.location = old.location
    result = new[-1].results[0]
    result.name_hint = old.result.name_hint
    Rewriter.insert_op(new, InsertPoint.before(old))
    Rewriter.replace_op(old, [], [result])
    return result


# The channels-last forms of the operators between convolutions.
#
# Each rule takes operands `[N, spatial..., C]` and gives the operations that compute an operator's result in the same
# form, the last of which gives that result; or none where there is no such form.


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


# Convolutions of images `[N, spatial..., C]`: as matrix products where tensor cores would take them, else as their
# definition.
#
# Rows of a product are pixels of all images, columns output channels, and its terms `(kernel..., C)`: consecutive terms
# are consecutive channels, which one access reads. Source: Chetlur et al., "cuDNN: Efficient primitives for deep
# learning", 2014, section 3.

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
