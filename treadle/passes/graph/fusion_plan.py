"""Which operators share a kernel: the partition that `graph-fuse` carries out, and why.

Rules (Hidet, ASPLOS 2023, section 5.2): a group has one anchor, a matrix product, attention or a definition
with a reduction. Its *epilogues* are definitions, each bijective in what it reads of the group; its *prologues* are
injective definitions that are computed where they are read.

1. The anchors, backwards: the only user of a result becomes an epilogue.
2. The other definitions, backwards: a prologue of all that read it, where computing it there costs less than storing
   it once (`fusion_cost.py`). Definitions that merely move data, or widen floats, are repeated in every group that
   reads them; widening ends no chain of epilogues. Injective definitions that no anchor takes form groups of their own.
3. The elementwise groups, forwards: one that reads what another group computes joins it, if each element is available
   there; the group then stores several tensors (`fusion_join.py`).

The graph of groups is acyclic at the beginning, where each operator is alone, and every step keeps it so: (1) contracts
an edge to an only user, (2) removes a node and connects its inputs to its users, (3) contracts an edge beside which
there is no other path.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from treadle.dialects.graph import ComputeOp, WholeOp
from treadle.passes.graph.definition_analysis import (
    is_bijective_in,
    unchanged_definitions,
    users_of,
    widens_data,
)
from treadle.passes.graph.fusion_cost import prologue_obstacle
from treadle.passes.graph.fusion_group import Decision, Group, Plan, describe, is_anchor, tensors_of
from treadle.passes.graph.fusion_join import join_groups
from treadle.target import Target


def nodes_of(ops: Sequence[Operation]) -> list[Operation]:
    """The operators that are put into groups."""
    return [op for op in ops if isinstance(op, ComputeOp | WholeOp)]


def plan_fusion(ops: Sequence[Operation], target: Target) -> Plan:
    """The partition of the computes and matrix products of one block (others are left alone)."""
    with unchanged_definitions():
        return _planned(ops, target)


def _planned(ops: Sequence[Operation], target: Target) -> Plan:
    nodes = nodes_of(ops)
    plan = Plan(target)
    # Backwards: what could be an epilogue of two anchors goes to the later one, where both operands exist.
    for anchor in (op for op in reversed(nodes) if is_anchor(op)):
        _collect_epilogues(plan, plan.open(anchor))
    for compute in (op for op in reversed(nodes) if isinstance(op, ComputeOp) and not plan.homes(op)):
        _place(plan, compute)
    join_groups(plan, {op: n for n, op in enumerate(ops)})
    return plan


def _collect_epilogues(plan: Plan, group: Group) -> None:
    """Grows a group's chain while the next user is bijective in the chain's result, and its only user."""
    while True:
        tail = group.tail
        users = users_of(tail.results[0])
        for user in users:
            reason = _epilogue_obstacle(plan, group, user)
            if reason:
                plan.refuse(tail, user, reason)
            elif len(users) == 1 and isinstance(user, ComputeOp):
                plan.append(group, user)
        if group.tail is tail:
            break
    while len(group.chain) > 1 and _only_widens_for_kernels(group.tail):
        plan.drop_tail(group)


def _only_widens_for_kernels(tail: Operation) -> bool:
    if not isinstance(tail, ComputeOp) or not widens_data(tail):
        return False
    return all(isinstance(user, ComputeOp | WholeOp) for user in users_of(tail.result))


def _epilogue_obstacle(plan: Plan, group: Group, user: Operation) -> str:
    """Why `user`, if it is the only user of the group's result, is no epilogue; empty if it is one."""
    if not isinstance(user, ComputeOp | WholeOp):
        return "the result leaves the function"
    if is_anchor(user) or not isinstance(user, ComputeOp):
        return "the user is an anchor itself"
    if (home := plan.chain_home(user)) is not None:
        return f"the user is an epilogue of {describe(home.anchor)}"
    if not is_bijective_in(user, group.tail.results[0]):
        return "the user is not bijective in it"
    return plan.size_obstacle(group, plan.size(user))


def _place(plan: Plan, compute: ComputeOp) -> None:
    """Makes an injective compute a prologue of its users' groups, or opens a group for it."""
    users = users_of(compute.result)
    groups = list(dict.fromkeys(group for user in users for group in plan.homes(user)))
    reason = "it is stored anyway, as it leaves the function"
    if groups and all(plan.homes(user) for user in users):
        too_large = (plan.size_obstacle(group, plan.size_inlined(compute)) for group in groups)
        reason = next(filter(None, too_large), "") or prologue_obstacle(compute, groups, plan.target)
    if not reason:
        for group in groups:
            plan.prepend(group, compute)
        return
    for user in users:
        plan.refuse(compute, user, reason)
    plan.open(compute)


__all__ = ["Decision", "Group", "Plan", "describe", "nodes_of", "plan_fusion", "tensors_of"]
