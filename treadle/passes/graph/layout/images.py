"""The forms of one function's images in another layout: which there are, where they begin and where they end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ComputeOp, ConvOp, ConvTransposeOp, Operator
from treadle.passes.graph.rewriting import shape_of

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


__all__ = ["Form", "Images", "Layout", "operands_of"]
