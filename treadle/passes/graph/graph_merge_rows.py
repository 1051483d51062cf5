"""graph-merge-rows: chains of reductions over the same rows become one definition."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.compute import ComputeOp, ReduceOp, YieldOp
from treadle.passes.graph.definition_analysis import has_only_users, is_injective, is_too_large, size
from treadle.passes.graph.inline_compute import GrowingBodies, reads_of
from treadle.passes.graph.simplify_body import simplify_body
from treadle.schedules.row_analysis import Rows, analyse_rows

# How far definitions are from the reductions that they are computed from.

MOST_MERGED = 32
"""Definitions that one row computation may have been written as: a layer normalisation takes ten to fourteen. The bound
keeps the search linear in long chains."""


class ReductionDistance:
    """Which definitions lead to a reduction by way of less than `MOST_MERGED` others.

    computes: the definitions of one block, in program order
    """

    def __init__(self, computes: Sequence[ComputeOp]):
        self._injective = {compute for compute in computes if is_injective(compute)}
        self._producers = {compute: _producers(compute) for compute in computes}
        self._steps: dict[ComputeOp, int] = {}
        """The fewest steps from a definition to a reduction; none where there is no reduction."""
        for compute in computes:
            steps = [self._steps.get(p) if p in self._injective else 0 for p in self._producers[compute]]
            known = [each for each in steps if each is not None]
            if known:
                self._steps[compute] = 1 + min(known)

    def is_injective(self, compute: ComputeOp) -> bool:
        """Whether the definition has no reduction."""
        return compute in self._injective

    def leads_to_one(self, compute: ComputeOp, rejected: Set[ComputeOp]) -> bool:
        """Whether a definition reads a reduction that is not rejected, by way of a few definitions only."""
        if self._steps.get(compute, MOST_MERGED) >= MOST_MERGED:
            return False
        waiting, seen = [compute], {compute}
        for each in waiting:
            if len(seen) >= MOST_MERGED:
                break
            new = [p for p in self._producers[each] if p not in rejected and p not in seen]
            if any(p not in self._injective for p in new):
                return True
            waiting.extend(new)
            seen.update(new)
        return False


def _producers(compute: ComputeOp) -> list[ComputeOp]:
    return [tensor.owner for tensor in compute.tensors() if isinstance(tensor.owner, ComputeOp)]


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
    Producers are inlined that only the definition and its other producers use, as long as every reduction runs over the
    definition's inner indices and depends on its outer ones only (`treadle/schedules/row_analysis.py`). Such a
    definition becomes one kernel that reads each row once, whatever operators the model was written with.
    """

    name = "graph-merge-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            computes = [c for c in function.body.block.ops if isinstance(c, ComputeOp)]
            reductions = ReductionDistance(computes)
            gone: set[Operation] = set()
            for compute in reversed(computes):
                if compute not in gone:
                    gone |= _merge_into(compute, reductions)


def _merge_into(root: ComputeOp, reductions: ReductionDistance) -> set[Operation]:
    """Replaces a definition by one with its producers inlined; the producers that are gone."""
    search = _Search(root, reductions)
    merged = search.run()
    if merged is None:
        return set()
    merged.result.name_hint = root.result.name_hint
    Rewriter.insert_op(merged, InsertPoint.before(root))
    Rewriter.replace_op(root, [], [merged.result])
    for producer in search.taken:
        Rewriter.erase_op(producer)
    return set(search.taken)


class _Search:
    """Inlines producers into a copy of `root`, in order: those before the last reduction that fits, then those that
    read nothing but what the definition reads by then."""

    def __init__(self, root: ComputeOp, reductions: ReductionDistance):
        self._root = root
        self._reductions = reductions
        self._rejected: set[ComputeOp] = set()
        self._bodies = GrowingBodies(_simplify_rows)
        self._copies: set[Operation] = set()
        """Of `root`, detached; they read what it reads, and what was inlined."""
        self.taken: list[ComputeOp] = []
        """What was inlined, in order."""

    def run(self) -> ComputeOp | None:
        """The copy, or None if nothing fits."""
        fitting = self._with_reductions()
        if fitting is None:
            return None
        while len(self.taken) < MOST_MERGED and (producer := self._of_the_same_tensors()) is not None:
            if is_too_large(size(fitting) + len(reads_of(producer, fitting)) * size(producer)):
                break
            self._inline(producer, fitting)
        self._bodies.simplify(fitting)
        return fitting

    def _with_reductions(self) -> ComputeOp | None:
        """A copy with reductions, and what leads to them, inlined; None if no reduction fits."""
        fitting: ComputeOp | None = None
        count, copy = 0, None
        while len(self.taken) < MOST_MERGED and (producer := self._next()) is not None:
            copy = copy or self._copy(self._root)
            if self._reductions.is_injective(producer):
                self._inline(producer, copy)
                if self._is_too_large(copy):
                    break
                continue
            trial = self._with_reduction(producer, copy)
            if trial is None:
                self._rejected.add(producer)
                continue
            copy.erase()
            if fitting is not None:
                fitting.erase()
            fitting, copy, count = trial, self._copy(trial), len(self.taken)
        if copy is not None:
            copy.erase()
        del self.taken[count:]
        return fitting

    def _with_reduction(self, producer: ComputeOp, copy: ComputeOp) -> ComputeOp | None:
        """A copy of the copy with a reduction inlined; None unless it is a row computation."""
        if any(at.predicate is not None for at in reads_of(producer, copy)):
            return None
        trial = self._copy(copy)
        self._inline(producer, trial)
        self._bodies.simplify(trial)
        rows = analyse_rows(trial)
        if isinstance(rows, Rows) and rows.worth_one_kernel and not self._is_too_large(trial):
            return trial
        self.taken.pop()
        trial.erase()
        return None

    def _copy(self, body: ComputeOp) -> ComputeOp:
        copy = body.clone()
        self._copies.add(copy)
        return copy

    def _inline(self, producer: ComputeOp, body: ComputeOp) -> None:
        self._bodies.inline(producer, body, reads_of(producer, body))
        self.taken.append(producer)

    def _is_too_large(self, body: ComputeOp) -> bool:
        return is_too_large(size(body)) and not (self._bodies.simplify(body) and not is_too_large(size(body)))

    def _next(self) -> ComputeOp | None:
        """A producer that only the merged definition would use: a reduction if there is one, or one that leads to a
        reduction."""
        found = self._candidates()
        reducing = (op for op in found if not self._reductions.is_injective(op))
        leading = (op for op in found if self._reductions.leads_to_one(op, self._rejected))
        return next(chain(reducing, leading), None)

    def _of_the_same_tensors(self) -> ComputeOp | None:
        """An elementwise producer whose operands the definition reads anyway, such as the squares of a row."""
        read = {tensor for member in (self._root, *self.taken) for tensor in member.tensors()}
        elementwise = [op for op in self._candidates() if self._reductions.is_injective(op)]
        return next((op for op in elementwise if set(op.tensors()) <= read), None)

    def _candidates(self) -> list[ComputeOp]:
        """The producers that nothing else reads."""
        inside = {self._root: None, **dict.fromkeys(self.taken)}
        read = dict.fromkeys(tensor.owner for member in inside for tensor in member.tensors())
        found = [op for op in read if isinstance(op, ComputeOp) and op not in inside and op not in self._rejected]
        return [op for op in found if has_only_users(op.result, inside.keys() | self._copies)]


def _simplify_rows(body: ComputeOp) -> None:
    _hoist(body.body)
    simplify_body(body)
    _share_reductions(body)


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
