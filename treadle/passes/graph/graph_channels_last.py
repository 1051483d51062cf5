"""graph-channels-last: convolutions, and what stands between them, on images whose channels are neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ComputeOp, ConvOp, ConvTransposeOp, Operator, TransposeOp
from treadle.passes.graph.layout.operators import channels_last, folded_to_rows, operands_of
from treadle.passes.graph.layout.permutations import to_first, to_last
from treadle.passes.graph.rewriting import shape_of


@dataclass(frozen=True)
class GraphChannelsLastPass(ModulePass):
    """Rewrites convolutions, and the operators between them, for images `[N, spatial..., C]`.

    ```mlir
    %c = graph.conv %x, %w {...} : (tensor<1x64x56x56xf16>, tensor<64x64x3x3xf16>) -> tensor<1x64x56x56xf16>
    %b = graph.binary "add" %c, %bias : (tensor<1x64x56x56xf16>, tensor<64x1x1xf16>) -> tensor<1x64x56x56xf16>
    %y = graph.pool "max" %b {...} : (tensor<1x64x56x56xf16>) -> tensor<1x64x28x28xf16>
    ```
    becomes
    ```mlir
    %0 = graph.transpose %x {perm = array<i64: 0, 2, 3, 1>} : ... -> tensor<1x56x56x64xf16>
    %1 = graph.compute "im2col" (%p, %k) { graph.at %0[...] where %inside else %zero } : tensor<3136x576xf16>
    %2 = graph.matmul %1, %filters : (tensor<3136x576xf16>, tensor<576x64xf16>) -> tensor<3136x64xf16>
    %3 = graph.reshape %2 {shape = array<i64: 1, 56, 56, 64>} : ...
    %4 = graph.binary "add" %3, %bias_row : (tensor<1x56x56x64xf16>, tensor<64xf16>) -> tensor<1x56x56x64xf16>
    %5 = graph.compute "pool_max" (%n, %h, %w, %c) { ... %4[%n, %i, %j, %c] ... } : tensor<1x28x28x64xf16>
    %y = graph.transpose %5 {perm = array<i64: 0, 3, 1, 2>} : ... -> tensor<1x64x28x28xf16>
    ```
    A convolution asks for its input in this form, and operators that have a channels-last form propagate it; so an
    image is transposed only where it enters such a region, and where an operator outside reads it. The K dimension of a
    product then runs along channels: copies move 16 consecutive bytes (Hidet, ASPLOS 2023, section 5.2: a prologue that
    only moves data becomes the address of the copy), and stores write whole rows of channels. Operators of symbolic
    extents stay as they are.
    """

    name = "graph-channels-last"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.body.blocks:
                _Images(function.body.block).run()


class _Images:
    """The channels-last forms of one function's values."""

    def __init__(self, block: Block):
        self.block = block
        self._forms: dict[SSAValue, SSAValue] = {}
        self._turned_back: list[TransposeOp] = []

    def run(self) -> None:
        """Rewrites every operator that reads an image in this form, in order."""
        for op in list(self.block.ops):
            if isinstance(op, Operator | ComputeOp) and self._reads_images(op):
                self._rewrite(op)
        for back in reversed(self._turned_back):
            if not back.result.uses:
                Rewriter.erase_op(back)

    def _reads_images(self, op: Operator | ComputeOp) -> bool:
        operands = operands_of(op)
        if any(DYNAMIC_INDEX in shape_of(value) for value in (*operands, op.result)):
            return False
        return isinstance(op, ConvOp | ConvTransposeOp) or any(value in self._forms for value in operands)

    def _rewrite(self, op: Operator | ComputeOp) -> None:
        rank = len(op.shape)
        new = channels_last(op, self._form, self._forms.__contains__) if rank >= 3 else []
        if not new:
            source = next((value for value in operands_of(op) if value in self._forms), None)
            direct = [] if source is None else folded_to_rows(op, self._forms[source])
            if direct:
                _replace(op, direct)
            return
        form = new[-1].results[0]
        back = TransposeOp(form, to_first(rank))
        _replace(op, [*new, back])
        self._forms[back.result] = form
        self._turned_back.append(back)

    def _form(self, value: SSAValue) -> SSAValue:
        """A value's channels-last form, transposed once where it has none."""
        if value not in self._forms:
            transposed = TransposeOp(value, to_last(len(shape_of(value))))
            owner = value.owner
            if isinstance(owner, Operation):
                transposed.location = owner.location
            point = InsertPoint.after(owner) if isinstance(owner, Operation) else InsertPoint.at_start(self.block)
            Rewriter.insert_op(transposed, point)
            self._forms[value] = transposed.result
        return self._forms[value]


def _replace(old: Operator | ComputeOp, new: list[Operation]) -> None:
    """Replaces an operator by operations, of which the last gives its result."""
    for op in new:
        op.location = old.location
    new[-1].results[0].name_hint = old.result.name_hint
    Rewriter.insert_op(new, InsertPoint.before(old))
    Rewriter.replace_op(old, [], [new[-1].results[0]])


__all__ = ["GraphChannelsLastPass"]
