"""Which operators share a kernel: the partition that `graph-fuse` carries out, and why.

Rules (Hidet, ASPLOS 2023, section 5.2): a group has one anchor, a matrix product, attention or a definition
with a reduction. Its *epilogues* are a chain of definitions, each bijective in the previous result and its
only user.  Its *prologues* are injective definitions that only the group uses; one whose elements the group
reads more than once must merely move data.  Definitions that merely move data, or widen floats, are repeated
in every group that reads them; widening ends no chain of epilogues.  Injective definitions that no anchor
takes form groups of their own, whose anchor is the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, WholeOp
from treadle.passes.graph.inline_compute import operator_names
from treadle.passes.graph.properties import (
    defined,
    is_bijective_in,
    is_injective,
    moves_data,
    read_points,
    shape_of,
    users_of,
    widens_data,
    worth_storing,
)


@dataclass(frozen=True)
class Decision:
    """Whether a producer was fused with a consumer, and why (not)."""

    producer: Operation
    consumer: Operation
    fused: bool
    reason: str

    def __str__(self) -> str:
        verb = "fused" if self.fused else "not fused"
        return f"{describe(self.producer)} -> {describe(self.consumer)}: {verb}, {self.reason}"


@dataclass(eq=False)
class Group:
    """One kernel to be: `chain` is the anchor and its epilogues, the last of which gives the result."""

    chain: list[Operation]
    prologues: list[ComputeOp] = field(default_factory=list[ComputeOp])
    evaluations: dict[Operation, Fraction] = field(default_factory=dict[Operation, Fraction])
    """How often each member computes one of its elements."""

    @property
    def anchor(self) -> Operation:
        """The operator that a template schedules."""
        return self.chain[0]

    @property
    def tail(self) -> Operation:
        """The member whose result leaves the group."""
        return self.chain[-1]

    def members(self) -> list[Operation]:
        """All members."""
        return [*self.prologues, *self.chain]

    def multiplicity(self, operand: SSAValue) -> Fraction:
        """How often the group reads an element of `operand` on average."""
        total = Fraction(0)
        for member in self.members():
            if operand in tensors_of(member):
                with defined(member) as compute:
                    total += self.evaluations.get(member, Fraction(1)) * read_points(compute, operand)
        return total / (prod(shape_of(operand)) or 1)


@dataclass
class Plan:
    """The groups in the order of their anchors, and the decisions in the order in which they were made."""

    groups: list[Group] = field(default_factory=list[Group])
    decisions: list[Decision] = field(default_factory=list[Decision])
    _homes: dict[Operation, list[Group]] = field(default_factory=dict[Operation, list[Group]])

    def homes(self, op: Operation) -> list[Group]:
        """The groups that an operator is a member of: several where it is repeated."""
        return self._homes.get(op, [])

    def open(self, anchor: Operation) -> Group:
        """A new group of this anchor."""
        group = Group([anchor])
        self.groups.append(group)
        self._homes[anchor] = [group]
        return group

    def append(self, group: Group, epilogue: ComputeOp) -> None:
        """Takes an epilogue into a group."""
        group.chain.append(epilogue)
        self._homes[epilogue] = [group]

    def drop_tail(self, group: Group) -> None:
        """Frees a group's last epilogue, which only widens floats: what it reads is stored, and readers widen it."""
        widening = group.chain.pop()
        del self._homes[widening]
        self.decisions = [decision for decision in self.decisions if decision.consumer is not widening]
        self.decide(group.tail, widening, False, "it only widens floats, which its readers do")

    def prepend(self, group: Group, prologue: ComputeOp) -> None:
        """Takes a prologue into a group."""
        group.evaluations[prologue] = group.multiplicity(prologue.result)
        group.prologues.insert(0, prologue)
        self._homes.setdefault(prologue, []).append(group)

    def decide(self, producer: Operation, consumer: Operation, fused: bool, reason: str) -> None:
        """Records a decision."""
        self.decisions.append(Decision(producer, consumer, fused, reason))


def plan_fusion(ops: Sequence[Operation]) -> Plan:
    """The partition of the computes and matrix products of one block (others are left alone)."""
    nodes = [op for op in ops if isinstance(op, ComputeOp | WholeOp)]
    order: dict[Operation, int] = {op: n for n, op in enumerate(nodes)}
    plan = Plan()
    # Backwards: what could join two anchors' chains joins the later one's, so that it waits for no kernel.
    for anchor in (op for op in reversed(nodes) if is_anchor(op)):
        _collect_epilogues(plan, plan.open(anchor))
    for compute in (op for op in reversed(nodes) if isinstance(op, ComputeOp) and not plan.homes(op)):
        _place(plan, compute)
    plan.groups.sort(key=lambda group: order[group.tail])
    return plan


def is_anchor(op: Operation) -> bool:
    """Whether an operator asks for a template: a matrix product, attention, or a definition with a reduction."""
    return isinstance(op, WholeOp) or (isinstance(op, ComputeOp) and not is_injective(op))


def tensors_of(op: Operation) -> Iterable[SSAValue]:
    """The tensors that an operator reads."""
    return op.tensors() if isinstance(op, ComputeOp) else op.operands


def _collect_epilogues(plan: Plan, group: Group) -> None:
    """Grows a group's chain while the next user is bijective in the chain's result, and its only user."""
    while True:
        tail = group.tail
        users = users_of(tail.results[0])
        obstacle = "the result has several users" if len(users) > 1 else ""
        for user in users:
            reason = obstacle or _epilogue_obstacle(plan, tail.results[0], user)
            plan.decide(tail, user, not reason, reason or "as an epilogue")
        last = plan.decisions[-1] if users else None
        if last is None or not last.fused or not isinstance(last.consumer, ComputeOp):
            break
        plan.append(group, last.consumer)
    while len(group.chain) > 1 and _only_widens_for_kernels(group.tail):
        plan.drop_tail(group)


def _only_widens_for_kernels(tail: Operation) -> bool:
    if not isinstance(tail, ComputeOp) or not widens_data(tail):
        return False
    return all(isinstance(user, ComputeOp | WholeOp) for user in users_of(tail.result))


def _epilogue_obstacle(plan: Plan, result: SSAValue, user: Operation) -> str:
    """Why `user`, the only user of `result`, is no epilogue; empty if it is one."""
    if is_anchor(user):
        return "the user is an anchor itself"
    if not isinstance(user, ComputeOp):
        return "the result leaves the function"
    if plan.homes(user):
        return f"the user is an epilogue of {describe(plan.homes(user)[0].anchor)}"
    return "" if is_bijective_in(user, result) else "the user is not bijective in it"


def _place(plan: Plan, compute: ComputeOp) -> None:
    """Makes an injective compute a prologue of its users' groups, or opens a group for it."""
    users = users_of(compute.result)
    groups = list(dict.fromkeys(group for user in users for group in plan.homes(user)))
    reason = _prologue_obstacle(compute, users, groups, plan)
    for user in users:
        plan.decide(compute, user, not reason, reason or "as a prologue")
    if reason:
        plan.open(compute)
        return
    for group in groups:
        plan.prepend(group, compute)


def _prologue_obstacle(compute: ComputeOp, users: Sequence[Operation], groups: Sequence[Group], plan: Plan) -> str:
    """Why an injective compute is no prologue of its users' groups; empty if it is one."""
    if not groups or any(not plan.homes(user) for user in users):
        return "the result leaves the function"
    if moves_data(compute) or widens_data(compute):
        times = max(group.multiplicity(compute.result) for group in groups)
        return f"its predicate would be tested {float(times):g} times" if worth_storing(compute, times) else ""
    if len(groups) > 1:
        return f"{len(groups)} kernels use the result"
    repeats = groups[0].multiplicity(compute.result)
    return "" if repeats <= 1 else f"each element would be computed {float(repeats):g} times"


def describe(op: Operation) -> str:
    """An operator in a message: its name in the IR if it has one, and what it computes."""
    hint = next((f"%{r.name_hint} " for r in op.results if r.name_hint), "")
    return f"{hint}({' '.join(operator_names(op)) or op.name})"
