"""loop-simplify-index: index arithmetic in canonical form, hoisted as far out as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, ModuleOp, i1
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import AsyncCopyOp, FuncOp, KernelOp, LoadOp, StoreOp
from treadle.index.algebra import truth_of
from treadle.index.emitter import IndexEmitter
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import erase_dead, kernels_of

_INDEX_ARITHMETIC = (
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.DivUIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.ConstantOp,
)  # fmt: skip


@dataclass(frozen=True)
class LoopSimplifyIndexPass(ModulePass):
    """Rewrites the index expressions of loads, stores, comparisons and loop bounds through `Expr`, whose canonical
    form knows the ranges of loop variables, blocks and threads; drops predicates that always hold.

    ```mlir
    %q = arith.divui %l, %c32 : index
    %p = arith.muli %q, %c32 : index
    %r = arith.remui %l, %c32 : index
    %s = arith.addi %p, %r : index
    %v = loop.load %A[%s] where %always else %zero : memref<64xf32>
    ```
    becomes
    ```mlir
    %v = loop.load %A[%l] : memref<64xf32>
    ```
    Every part of an expression is computed in the outermost block in which its operands exist.
    """

    name = "loop-simplify-index"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            simplify_kernel(kernel)


def simplify_kernel(kernel: KernelOp | FuncOp) -> None:
    """Simplifies one kernel in place."""
    block = kernel.body.block
    first = block.first_op
    if first is None:
        return
    simplifier = _Simplifier(IndexReader())
    simplifier.block(block, IndexEmitter(InsertPoint.before(first)))
    erase_dead(block)


class _Simplifier:
    def __init__(self, reader: IndexReader):
        self._reader = reader
        self._truth: dict[SSAValue, bool] = {}

    def block(self, block: Block, emitter: IndexEmitter) -> None:
        """Simplifies a block's operations; the emitter's insertion point is in the same block."""
        self._sequence(list(block.ops), emitter)

    def _sequence(self, ops: Sequence[Operation], emitter: IndexEmitter) -> None:
        for op in ops:
            emitter.move(InsertPoint.before(op))
            if isinstance(op, _INDEX_ARITHMETIC):
                continue
            if isinstance(op, arith.CmpiOp) and isinstance(op.lhs.type, IndexType):
                self._comparison(op, emitter)
            elif isinstance(op, arith.AndIOp | arith.OrIOp) and op.result.type == i1:
                self._connective(op)
            elif isinstance(op, arith.SelectOp):
                self._select(op, emitter)
            elif isinstance(op, LoadOp | StoreOp):
                self._access(op, emitter)
            elif isinstance(op, AsyncCopyOp):
                self._operands(op, emitter)
                if op.predicate is not None and self._truth.get(op.predicate):
                    whole = AsyncCopyOp(op.count, op.source, op.source_indices, op.buffer, op.indices)
                    whole.location = op.location
                    whole.attributes |= op.attributes
                    Rewriter.replace_op(op, whole)
            else:
                self._operands(op, emitter)
                self._regions(op, emitter)

    def _regions(self, op: Operation, emitter: IndexEmitter) -> None:
        if isinstance(op, scf.IfOp) and op.cond in self._truth:
            self._decided_if(op, emitter)
            return
        for region in op.regions:
            for inner in region.blocks:
                if inner.first_op is not None:
                    self.block(inner, emitter.inside(InsertPoint.before(inner.first_op)))

    def _decided_if(self, op: scf.IfOp, emitter: IndexEmitter) -> None:
        """Keeps only the branch that is taken."""
        region = op.true_region if self._truth[op.cond] else op.false_region
        if not region.blocks:
            op.detach()
            op.erase()
            return
        end = region.block.last_op
        assert isinstance(end, scf.YieldOp)
        moved = [inner for inner in region.block.ops if inner is not end]
        values = list(end.arguments)
        for inner in moved:
            inner.detach()
            Rewriter.insert_op(inner, InsertPoint.before(op))
        end.detach()
        end.erase()
        Rewriter.replace_op(op, [], values)
        if moved:
            self._sequence(moved, emitter)

    def _operands(self, op: Operation, emitter: IndexEmitter) -> None:
        """Canonical index operands."""
        for n, operand in enumerate(op.operands):
            if isinstance(operand.type, IndexType):
                op.operands[n] = self._canonical(operand, emitter)

    def _canonical(self, value: SSAValue, emitter: IndexEmitter) -> SSAValue:
        new = emitter.emit(self._reader.read(value))
        if new is not value and new.name_hint is None:
            new.name_hint = value.name_hint
        return new

    def _comparison(self, op: arith.CmpiOp, emitter: IndexEmitter) -> None:
        truth = truth_of(self._reader.comparisons(op))
        if truth is not None:
            self._truth[op.result] = truth
            return
        for n, side in enumerate((op.lhs, op.rhs)):
            op.operands[n] = emitter.emit(self._reader.read(side))

    def _connective(self, op: arith.AndIOp | arith.OrIOp) -> None:
        neutral = isinstance(op, arith.AndIOp)
        known = [self._truth.get(side) for side in (op.lhs, op.rhs)]
        if (not neutral) in known:
            self._truth[op.result] = not neutral
        elif known == [neutral, neutral]:
            self._truth[op.result] = neutral
        elif neutral in known:
            op.result.replace_all_uses_with(op.rhs if known[0] is neutral else op.lhs)

    def _select(self, op: arith.SelectOp, emitter: IndexEmitter) -> None:
        if op.cond in self._truth:
            Rewriter.replace_op(op, [], [op.lhs if self._truth[op.cond] else op.rhs])
            return
        self._operands(op, emitter)

    def _access(self, op: LoadOp | StoreOp, emitter: IndexEmitter) -> None:
        offset = 1 if isinstance(op, LoadOp) else 2
        for n, i in enumerate(list(op.indices)):
            op.operands[offset + n] = self._canonical(i, emitter)
        if op.predicate is None or op.predicate not in self._truth:
            return
        if not self._truth[op.predicate]:
            Rewriter.replace_op(op, [], [op.otherwise] if isinstance(op, LoadOp) and op.otherwise else [])
            return
        if isinstance(op, LoadOp):
            new: LoadOp | StoreOp = LoadOp(op.buffer, op.indices)
            new.result.name_hint = op.result.name_hint
        else:
            new = StoreOp(op.value, op.buffer, op.indices)
        new.location = op.location
        new.attributes |= op.attributes
        Rewriter.replace_op(op, new)
