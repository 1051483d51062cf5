"""graph-merge-rows: chains of reductions over the same rows become one definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.compute import ComputeOp, ReduceOp, YieldOp
from treadle.passes.graph.inline_compute import inline_at, operator_names, set_operator_names
from treadle.passes.graph.properties import is_injective, users_of
from treadle.passes.graph.simplify_body import simplify_body
from treadle.schedules.row_analysis import Rows, analyse_rows

MOST_MERGED = 32
"""Definitions that one row computation may have been written as: a layer normalisation takes ten to fourteen. The bound
keeps the search linear in long chains."""


@dataclass(frozen=True)
class GraphMergeRowsPass(ModulePass):
    """Inlines reductions, and what lies between them, into a definition that remains a row computation.

    ```mlir
    %m = graph.compute "reduction_max" (%i, %z) { graph.reduce max (%k in 8) { ... %x[%i, %k] ... } } : tensor<4x1xf32>
    %y = graph.compute "sub" (%i, %j) { ... %x[%i, %j] ... %m[%i, 0] ... } : tensor<4x8xf32>
    ```
    becomes
    ```mlir
    %y = graph.compute "reduction_max sub" (%i, %j) {
      %m = graph.reduce max (%k in 8) { ... %x[%i, %k] ... }
      ... %x[%i, %j] ... %m ... } : tensor<4x8xf32>
    ```
    Inlined is what only the definition and its other producers use, as long as every reduction runs over the
    definition's inner indices and depends on its outer ones only (`treadle/schedules/row_analysis.py`). Such a
    definition is one kernel that reads each row once, whatever operators it was written with.
    """

    name = "graph-merge-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            gone: set[Operation] = set()
            for compute in reversed([c for c in function.body.block.ops if isinstance(c, ComputeOp)]):
                if compute not in gone:
                    gone |= _merge_into(compute)


def _merge_into(root: ComputeOp) -> set[Operation]:
    """Replaces a definition by one with its producers inlined; the producers that are gone."""
    search = _Search(root)
    chosen = search.run()
    if not chosen:
        return set()
    merged = _inlined(root, chosen)
    merged.location, merged.result.name_hint = root.location, root.result.name_hint
    Rewriter.insert_op(merged, InsertPoint.before(root))
    Rewriter.replace_op(root, [], [merged.result])
    for producer in chosen:
        Rewriter.erase_op(producer)
    return set(chosen)


@dataclass
class _Search:
    """Which producers to inline into `root`, in order: those before the last reduction that fits, and such as read
    nothing else than the definition does then."""

    root: ComputeOp
    taken: list[ComputeOp] = field(default_factory=list[ComputeOp])
    rejected: set[ComputeOp] = field(default_factory=set[ComputeOp])

    def run(self) -> list[ComputeOp]:
        fitting = 0
        while len(self.taken) < MOST_MERGED and (producer := self._next()) is not None:
            reduces = not is_injective(producer)
            if reduces and not self._fits(producer):
                self.rejected.add(producer)
                continue
            self.taken.append(producer)
            fitting = len(self.taken) if reduces else fitting
        del self.taken[fitting:]
        while self.taken and len(self.taken) < MOST_MERGED and (producer := self._of_the_same_tensors()) is not None:
            self.taken.append(producer)
        return self.taken

    def _next(self) -> ComputeOp | None:
        """A producer that only the definition to be would use: a reduction if there is one, or what leads to one."""
        found = self._candidates()
        reducing = [op for op in found if not is_injective(op)]
        return next(iter([*reducing, *(op for op in found if self._leads_to_reduction(op))]), None)

    def _of_the_same_tensors(self) -> ComputeOp | None:
        """An elementwise producer of what is read anyway: the squares of a row that is read for its result, too."""
        read = {tensor for member in (self.root, *self.taken) for tensor in member.tensors()}
        elementwise = [op for op in self._candidates() if is_injective(op)]
        return next((op for op in elementwise if set(op.tensors()) <= read), None)

    def _candidates(self) -> list[ComputeOp]:
        """The producers that nothing else reads."""
        inside: list[ComputeOp] = [self.root, *self.taken]
        read = dict.fromkeys(tensor.owner for member in inside for tensor in member.tensors())
        found = [op for op in read if isinstance(op, ComputeOp) and op not in inside and op not in self.rejected]
        return [op for op in found if all(user in inside for user in users_of(op.result))]

    def _leads_to_reduction(self, compute: ComputeOp) -> bool:
        """Whether a definition reads one with a reduction, by way of a few definitions only."""
        waiting, seen = [compute], {compute}
        while waiting and len(seen) < MOST_MERGED:
            producers = [t.owner for t in waiting.pop(0).tensors() if isinstance(t.owner, ComputeOp)]
            new = [p for p in producers if p not in self.rejected and p not in seen]
            if any(not is_injective(p) for p in new):
                return True
            waiting.extend(new)
            seen.update(new)
        return False

    def _fits(self, producer: ComputeOp) -> bool:
        """Whether the definition would be a row computation with this reduction inlined."""
        readers: list[ComputeOp] = [self.root, *self.taken]
        if any(at.source is producer.result and at.predicate is not None for r in readers for at in r.reads()):
            return False
        trial = _inlined(self.root, [*self.taken, producer])
        rows = analyse_rows(trial)
        trial.erase()
        return isinstance(rows, Rows) and rows.worth_one_kernel


def _inlined(root: ComputeOp, producers: Sequence[ComputeOp]) -> ComputeOp:
    """A copy of a definition with producers inlined, each before what it reads."""
    merged = root.clone()
    for producer in producers:
        for at in [at for at in merged.reads() if at.source is producer.result]:
            inline_at(at, producer)
        set_operator_names(merged, [*operator_names(producer), *operator_names(merged)])
    _hoist(merged.body)
    simplify_body(merged)
    _share_reductions(merged)
    return merged


def _hoist(body: Region) -> None:
    """Moves what does not depend on a reduction's indices in front of the reduction."""
    for op in list(body.block.ops):
        if not isinstance(op, ReduceOp):
            continue
        _hoist(op.body)
        inside = op.body.block
        for inner in list(inside.ops):
            if not isinstance(inner, YieldOp) and not any(_is_defined_in(o, inside) for o in _operands(inner)):
                inner.detach()
                body.block.insert_op_before(inner, op)


def _operands(op: Operation) -> list[SSAValue]:
    """What an operation and the operations inside it take from outside."""
    own = set(op.walk())
    operands = [operand for inner in own for operand in inner.operands]
    blocks = {block for region in op.regions for block in region.blocks}
    return [o for o in operands if o.owner not in own and o.owner not in blocks]


def _is_defined_in(value: SSAValue, block: Block) -> bool:
    owner = value.owner
    return owner is block or (isinstance(owner, Operation) and owner.parent is block)


def _share_reductions(compute: ComputeOp) -> None:
    """Computes each reduction of a row computation once."""
    rows = analyse_rows(compute)
    if not isinstance(rows, Rows):
        return
    first: dict[int, ReduceOp] = {}
    for reduce in rows.reduces:
        known = first.setdefault(rows.numbers.number(reduce.result), reduce)
        if known is not reduce:
            reduce.result.replace_all_uses_with(known.result)
            Rewriter.erase_op(reduce)


__all__ = ["GraphMergeRowsPass"]
