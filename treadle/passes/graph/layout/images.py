"""The images of a function in another layout: which values have a form, where forms begin, and where they end.

Convolutions begin them. What stands between convolutions follows: operators by their definition, whose index map is
rewritten; elementwise operators, concatenations and reshapes as themselves, since later passes know them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

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
    UnaryOp,
    WhereOp,
    definition,
)
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.layout.layout import Layout, advances_by_blocks, definition_in
from treadle.passes.graph.rewriting import shape_of

CHANNELS = 1
"""The dimension of channels in an image `[N, C, spatial...]`."""

Form = Callable[[SSAValue], SSAValue]
"""A value's form, which is computed from it where it has none."""
HasForm = Callable[[SSAValue], bool]

_Elementwise = UnaryOp | CastOp | BinaryOp | WhereOp
_Mapped = PoolOp | PadOp | SliceOp | ResizeOp | BroadcastOp | ReductionOp
"""Operators whose definition reads each image at an index that follows the result's."""


class ImageLayout(ABC):
    """A layout of images, and the operators that have a form in it.

    Operations are detached; the last of several gives the result.
    """

    @abstractmethod
    def of(self, rank: int) -> Layout:
        """The layout of images of so many dimensions."""

    def accepts(self, op: Operator | ComputeOp) -> bool:
        """Whether an operator's result may have a form."""
        return True

    @abstractmethod
    def convolution(self, op: ConvOp | ConvTransposeOp, form: Form, has_form: HasForm) -> list[Operation]:
        """The form of a convolution; none where it has no form."""

    @abstractmethod
    def value_of(self, op: Operator | ComputeOp, x: SSAValue) -> list[Operation]:
        """An operator's result, itself no image, from the form `x` of what it reads; none where there is no way."""

    def form_of(self, op: Operator | ComputeOp, form: Form, has_form: HasForm) -> list[Operation]:
        """The form of an operator's result; none where it has no form.

        has_form: whether a value's form is known; others begin here if the operator asks for them with `form`
        """
        if len(op.shape) < 3 or not self.accepts(op):
            return []
        if isinstance(op, ConvOp | ConvTransposeOp):
            return self.convolution(op, form, has_form)
        if isinstance(op, _Elementwise):
            return self._elementwise(op, form)
        if isinstance(op, ConcatOp):
            return self._concat(op, form)
        if isinstance(op, ReshapeOp):
            return self._reshape(op, form)
        return self._mapped(op, form, has_form) if isinstance(op, _Mapped | ComputeOp) else []

    def _elementwise(self, op: _Elementwise, form: Form) -> list[Operation]:
        """The same operator on forms; what is broadcast is arranged as it broadcasts to a form."""
        rank, new = len(op.shape), list[Operation]()
        layout = self.of(rank)

        def operand(x: SSAValue) -> SSAValue:
            shape = shape_of(x)
            if len(shape) == rank and (layout.cut is None or shape[CHANNELS] == op.shape[CHANNELS]):
                return form(x)
            if prod(shape) == 1:
                return x
            new.extend(_broadcast(x, layout, rank))
            return new[-1].results[0]

        operands = [operand(x) for x in op.operands]
        type = TensorType(op.type.get_element_type(), layout.shape(op.shape))
        return [*new, op.__class__.create(operands=operands, result_types=[type], properties=op.properties)]

    def _concat(self, op: ConcatOp, form: Form) -> list[Operation]:
        """Of pixels, images, channels or whole blocks of them."""
        dim, layout = op.dim.value.data, self.of(len(op.shape))
        if dim == layout.cut and any(shape_of(x)[dim] % layout.lanes for x in op.inputs[:-1]):
            return []
        return [ConcatOp([form(x) for x in op.inputs], layout.order.index(dim))]

    def _reshape(self, op: ReshapeOp, form: Form) -> list[Operation]:
        """Of pixels."""
        if shape_of(op.x)[: CHANNELS + 1] != op.shape[: CHANNELS + 1] or len(shape_of(op.x)) < 3:
            return []
        return [ReshapeOp(form(op.x), self.of(len(op.shape)).shape(op.shape))]

    def _mapped(self, op: Operator | ComputeOp, form: Form, has_form: HasForm) -> list[Operation]:
        """The definition on forms. Blocks of channels are read as whole ones, and beside other operands, which have
        nothing for lanes beyond the last channel, all of them are whole."""
        if isinstance(op, ReductionOp) and not (op.keep.value.data or min(int_list(op.properties, "dims")) > CHANNELS):
            return []
        images = [x for x in operands_of(op) if has_form(x)]
        if isinstance(op, ComputeOp):
            # What a definition reads may be anything; images are those that keep samples and channels.
            images = [x for x in images if shape_of(x)[: CHANNELS + 1] == op.shape[: CHANNELS + 1]]
        if not images or any(len(shape_of(x)) < 3 for x in images):
            return []
        layout = self.of(len(op.shape))
        if layout.cut is not None and not self._keeps_blocks(op, images, layout):
            return []
        return [definition_in(op, layout, {x: (form(x), self.of(len(shape_of(x)))) for x in images})]

    def _keeps_blocks(self, op: Operator | ComputeOp, images: Sequence[SSAValue], layout: Layout) -> bool:
        compute = op if isinstance(op, ComputeOp) else definition(op)
        others = [x for x in compute.tensors() if x not in images and shape_of(x)]
        keeps = not (others and op.shape[CHANNELS] % layout.lanes) and all(
            advances_by_blocks(compute, x, CHANNELS, layout.lanes) for x in images
        )
        if compute is not op:
            compute.erase()
        return keeps


def _broadcast(x: SSAValue, layout: Layout, rank: int) -> list[Operation]:
    """An operand of fewer dimensions or channels, for example `[C, 1, 1]`, as it broadcasts to a form."""
    shape = (*[1] * (rank - len(shape_of(x))), *shape_of(x))
    whole = ReshapeOp(x, shape)
    if layout.cut is not None and shape[layout.cut] == 1:
        return [whole, ReshapeOp(whole.result, [*shape, 1])]
    return [whole, *layout.enter(whole.result)]


class Images:
    """The forms of one function's values."""

    def __init__(self, block: Block, layout: ImageLayout):
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
        new = self.layout.form_of(op, self._form, self._forms.__contains__)
        if not new:
            source = next((value for value in operands_of(op) if value in self._forms), None)
            if source is not None and (direct := self.layout.value_of(op, self._forms[source])):
                _replace(op, direct)
            return
        form = new[-1].results[0]
        left = self.layout.of(len(op.shape)).leave(form, op.shape)
        self._forms[_replace(op, [*new, *left])] = form
        self._left += left

    def _form(self, value: SSAValue) -> SSAValue:
        """A value's form, begun once where it has none."""
        if value not in self._forms:
            owner = value.owner
            new = self.layout.of(len(shape_of(value))).enter(value)
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
