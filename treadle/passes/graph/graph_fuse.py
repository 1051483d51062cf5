"""graph-fuse: computes and matrix products become groups that are one kernel each."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import AppendOp, ComputeOp, FusedOp, Operator, WholeOp, YieldOp
from treadle.dialects.location import fused_location, location_of
from treadle.errors import TreadleError
from treadle.passes.graph.definition_analysis import is_injective, reads_by_user
from treadle.passes.graph.fusion_group import Decision
from treadle.passes.graph.fusion_plan import Group, nodes_of, plan_fusion
from treadle.passes.graph.inline_compute import GrowingBodies, operator_names
from treadle.target import Target

# Names for kernels, from the operators that they compute.

LIMIT = 60
"""Characters of a label."""

_MOVERS = frozenset(("reshape", "transpose", "broadcast", "slice", "pad_constant", "concat", "gather"))
_TAKEN = frozenset((
    "abs", "and", "auto", "bool", "break", "case", "ceil", "char", "const", "continue", "cos", "default",
    "div", "do", "double", "else", "erf", "exp", "extern", "float", "floor", "for", "goto", "if", "inline",
    "int", "isinf", "isnan", "log", "long", "main", "max", "min", "not", "or", "pow", "register", "return",
    "round", "short", "sin", "sign", "signed", "sizeof", "sqrt", "static", "struct", "switch", "tan", "tanh",
    "union", "unsigned", "void", "volatile", "while", "xor",
))  # fmt: skip
"""Single words that C, C++ or their libraries use."""


class GroupLabels:
    """Gives each label once.

    taken: labels that exist already
    """

    def __init__(self, taken: Iterable[str] = ()):
        self._known = set(taken)
        self._numbers: dict[str, int] = {}
        """The last number that was tried as a suffix of each label."""

    def label(self, words: Sequence[str]) -> str:
        """A C identifier like `matmul_add_relu`, not given before, of at most 60 characters.

        Repeated words and words for pure data movement are left out, the latter where others remain.
        """
        unique = list(dict.fromkeys(words))
        kept = [w for w in unique if w not in _MOVERS] or unique or ["copy"]
        text = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(kept))
        text = f"k{text}" if text[0].isdigit() or text[0] == "_" else text
        base = _shortened(f"{text}_kernel" if text in _TAKEN else text, LIMIT)
        label, number = base, self._numbers.get(base, 1)
        while label in self._known:
            number += 1
            label = f"{_shortened(base, LIMIT - len(str(number)) - 1)}_{number}"
        self._known.add(label)
        self._numbers[base] = max(number - 1, 1)
        return label


def group_label(words: Sequence[str], taken: Iterable[str] = ()) -> str:
    """One label; see `GroupLabels`."""
    return GroupLabels(taken).label(words)


def _shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut between words where one ends in the second half."""
    if len(text) <= limit:
        return text
    cut = text.rfind("_", limit // 2, limit + 1)
    return text[: cut if cut > 0 else limit].rstrip("_")


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
    The rules are those of `fusion_plan.py`.  A group is inserted where its result was computed. In a group, prologues
    are inlined into each other and into epilogues; what remains are computes that the anchor reads, the anchor, and the
    chain of epilogues.

    target: the text of a target, `cpu` or `sm_80` and so on, by whose memory and templates prologues are judged
    explain: print every decision and its reason to stderr.
    Errors: an operator that still has no definition (`graph-define` runs before).
    """

    name = "graph-fuse"
    target: str = "cpu"
    explain: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        labels = GroupLabels(fused.label.data for fused in op.walk() if isinstance(fused, FusedOp))
        for function in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            self._fuse(function.body.block, labels)

    def _fuse(self, block: Block, labels: GroupLabels) -> None:
        _drop_unused(block)
        _check(block)
        ops = list(block.ops)
        plan = plan_fusion(ops, Target.parse(self.target))
        if self.explain:
            for decision in plan.decisions(nodes_of(ops)):
                print(f"remark: {decision}", file=sys.stderr)
        order = {op: n for n, op in enumerate(block.ops)}
        for group in sorted(plan.groups, key=lambda group: order[group.tail]):
            members = sorted(group.members(), key=order.__getitem__)
            _build(group, labels.label([word for op in members for word in operator_names(op)]))
        _drop_unused(block)
        _put_in_order(block)


def fusion_decisions(module: ModuleOp, target: Target) -> list[Decision]:
    """What `graph-fuse` would do with each pair of neighbours of a module, and why; drops operators without a reader,
    as it does."""
    found: list[Decision] = []
    for function in [f for f in module.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
        _drop_unused(function.body.block)
        ops = list(function.body.block.ops)
        found += plan_fusion(ops, target).decisions(nodes_of(ops))
    return found


def _check(block: Block) -> None:
    for op in block.ops:
        if isinstance(op, Operator) and not isinstance(op, AppendOp | WholeOp):
            raise TreadleError(
                f"{op.name} has not been replaced by its definition",
                location_of(op),
                "graph.compute, graph.matmul and graph.attention; run graph-define first",
            )


def _drop_unused(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if isinstance(op, ComputeOp | WholeOp) and not op.result.uses:
            Rewriter.erase_op(op)


def _build(group: Group, label: str) -> None:
    """Moves the chain and copies the prologues into a `graph.fused`, which replaces the chain's end."""
    tail, results = group.tail, group.results()
    following = tail.next_op
    assert following is not None
    copies = _copy_prologues(group)
    for op in group.chain:
        op.detach()
    end = YieldOp(*results)
    end.location = tail.location
    fused = FusedOp(label, Region(Block([*copies, *group.chain, end])))
    fused.location = fused_location(op.location for op in (*group.chain, *copies))
    block = following.parent_block()
    assert block is not None
    block.insert_op_before(fused, following)
    inside = {id(op) for op in fused.walk()}
    for result, outer in zip(results, fused.outputs, strict=True):
        result.replace_uses_with_if(outer, lambda use: id(use.operation) not in inside)
        outer.name_hint, result.name_hint = result.name_hint, None


def _put_in_order(block: Block) -> None:
    """Moves what an operation reads in front of it: the reader of a group's first result may come before the operator
    that gives its last."""
    done: set[Operation] = set()
    opened: set[Operation] = set()
    for op in list(block.ops):
        waiting = [op]
        while waiting:
            current = waiting[-1]
            missing = [source for source in _sources(current, block) if source not in done]
            if missing:
                assert opened.isdisjoint(missing), "the plan has no groups that wait for each other"
                opened.add(current)
                waiting += missing
                continue
            waiting.pop()
            if current in done:
                continue
            done.add(current)
            opened.discard(current)
            if current is not op:
                current.detach()
                block.insert_op_before(current, op)


def _sources(op: Operation, block: Block) -> list[Operation]:
    """The operations of the block that give what `op`, or something inside it, reads."""
    owners = [operand.owner for inner in op.walk() for operand in inner.operands]
    found = [owner for owner in owners if isinstance(owner, Operation) and owner.parent is block]
    return list(dict.fromkeys(found))


def _copy_prologues(group: Group) -> list[ComputeOp]:
    """Copies of the prologues that the anchor reads; the others are inlined into their readers.

    `group.prologues` is in program order: walking it backwards, every reader is done before what it reads.
    """
    copies: list[ComputeOp] = []
    members: set[Operation] = set(group.chain)
    bodies = GrowingBodies()
    for prologue in reversed(group.prologues):
        reads = {op: ats for op, ats in reads_by_user(prologue.result).items() if op in members}
        for reader, ats in list(reads.items()):
            if isinstance(reader, ComputeOp) and is_injective(reader):
                bodies.inline(prologue, reader, ats)
                del reads[reader]
        if not reads:
            continue
        copy = prologue.clone()
        copy.result.name_hint = prologue.result.name_hint
        inside = {id(op) for reader in reads for op in reader.walk()}
        prologue.result.replace_uses_with_if(copy.result, lambda use, inside=inside: id(use.operation) in inside)
        copies.append(copy)
        members.add(copy)
    bodies.simplify_all()
    return copies[::-1]
