"""graph-fuse: computes and matrix products become groups that are one kernel each."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import ComputeOp, FusedOp, Operator, WholeOp, YieldOp
from treadle.errors import TreadleError
from treadle.passes.graph.fusion_plan import Group, plan_fusion, tensors_of
from treadle.passes.graph.group_label import group_label
from treadle.passes.graph.inline_compute import inline_compute, operator_names
from treadle.passes.graph.properties import is_injective


@dataclass(frozen=True)
class GraphFusePass(ModulePass):
    """Puts every `graph.compute`, `graph.matmul` and `graph.attention` into exactly one `graph.fused`.

    ```mlir
    %m = graph.matmul %x, %w : ...
    %y = graph.compute "add relu" (%i, %j) { ... %m[%i, %j] ... %bias[%j] ... } : tensor<128x64xf32>
    ```
    becomes
    ```mlir
    %y = graph.fused "matmul_add_relu" {
      %m = graph.matmul %x, %w : ...
      %r = graph.compute "add relu" (%i, %j) { ... } : tensor<128x64xf32>
      graph.yield %r : tensor<128x64xf32>
    } : tensor<128x64xf32>
    ```
    The rules are those of `fusion_plan.py`.  A group stands where its result was computed.  In a group,
    prologues are inlined into each other and into epilogues, so that what remains is: computes that the
    anchor reads, the anchor, the chain of epilogues.

    explain: print every decision and its reason to stderr.
    Errors: an operator that still has no definition (`graph-define` runs before).
    """

    name = "graph-fuse"
    explain: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        taken = {fused.label.data for fused in op.walk() if isinstance(fused, FusedOp)}
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            self._fuse(function.body.block, taken)

    def _fuse(self, block: Block, taken: set[str]) -> None:
        _drop_unused(block)
        _check(block)
        plan = plan_fusion(list(block.ops))
        if self.explain:
            for decision in plan.decisions:
                print(f"remark: {decision}", file=sys.stderr)
        order = {op: n for n, op in enumerate(block.ops)}
        for group in plan.groups:
            members = sorted(group.members(), key=order.__getitem__)
            label = group_label([word for op in members for word in operator_names(op)], taken)
            taken.add(label)
            _build(group, label)
        _drop_unused(block)


def _check(block: Block) -> None:
    for op in block.ops:
        if isinstance(op, Operator) and not isinstance(op, WholeOp):
            raise TreadleError(
                f"{op.name} has not been replaced by its definition",
                op.location,
                "graph.compute, graph.matmul and graph.attention; run graph-define first",
            )


def _drop_unused(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if isinstance(op, ComputeOp | WholeOp) and not op.result.uses:
            Rewriter.erase_op(op)


def _build(group: Group, label: str) -> None:
    """Moves the chain and copies the prologues into a `graph.fused` in the place of the chain's end."""
    tail, result = group.tail, group.tail.results[0]
    following = tail.next_op
    assert following is not None
    copies = _copy_prologues(group)
    for op in group.chain:
        op.detach()
    end = YieldOp(result)
    end.location = tail.location
    fused = FusedOp(label, Region(Block([*copies, *group.chain, end])))
    fused.location = group.anchor.location
    block = following.parent_block()
    assert block is not None
    block.insert_op_before(fused, following)
    result.replace_uses_with_if(fused.results[0], lambda use: use.operation is not end)
    fused.results[0].name_hint, result.name_hint = result.name_hint, None


def _copy_prologues(group: Group) -> list[ComputeOp]:
    """Copies of the prologues that the anchor reads; the others are inlined into their readers.

    `group.prologues` is in program order: walking it backwards, every reader is done before what it reads.
    """
    copies: list[ComputeOp] = []
    members: list[Operation] = list(group.chain)
    for prologue in reversed(group.prologues):
        readers = [m for m in members if prologue.result in tensors_of(m)]
        for reader in readers:
            if isinstance(reader, ComputeOp) and is_injective(reader):
                inline_compute(prologue, reader)
        readers = [m for m in readers if prologue.result in tensors_of(m)]
        if not readers:
            continue
        copy = prologue.clone()
        copy.result.name_hint = prologue.result.name_hint
        inside = {id(op) for reader in readers for op in reader.walk()}
        prologue.result.replace_uses_with_if(copy.result, lambda use, inside=inside: id(use.operation) in inside)
        copies.insert(0, copy)
        members.append(copy)
    return copies
