"""Which operators share a kernel: the partition that `graph-fuse` carries out, and why.

Rules (Hidet, ASPLOS 2023, section 5.2): a group has one anchor, a matrix product, attention or a definition
with a reduction. Its *epilogues* are definitions, each bijective in what it reads of the group; its *prologues* are
injective definitions that are computed where they are read.

1. The anchors, backwards: the only user of a result becomes an epilogue.
2. The other definitions, backwards: a prologue of all that read it, where computing it there costs less than storing
   it once (`fusion_cost.py`). Definitions that merely move data, or widen floats, are repeated in every group that
   reads them; widening ends no chain of epilogues. Injective definitions that no anchor takes form groups of their own.
3. The elementwise groups, forwards: one that reads what another group computes joins it, if each element is available
   there; the group then stores several tensors.

The graph of groups is acyclic at the beginning, where each operator is alone, and every step keeps it so: (1) contracts
an edge to an only user, (2) removes a node and connects its inputs to its users, (3) contracts an edge beside which
there is no other path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, ConstantOp, WholeOp
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.graph.fused import enclosing_compute
from treadle.passes.graph.definition_analysis import (
    element_index,
    is_bijective_in,
    operand_variables,
    shape_of,
    tensors_read,
    unchanged_definitions,
    users_of,
    widens_data,
)
from treadle.passes.graph.epilogue_index import Alignment, aligned
from treadle.passes.graph.fusion_cost import prologue_obstacle
from treadle.passes.graph.fusion_group import Decision, Group, Plan, describe, is_anchor, tensors_of
from treadle.target import Target

# A topological order of the groups, kept up to date while groups are fused, so that few of them are searched for a
# cycle.
#
# The ranks are the positions in that order. A path between two groups passes only through ranks between theirs. When
# two groups are fused, those in between that depend on the first move after both, and those that the second depends on
# move in front. Source: Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs" (2006),
# for two nodes that become one instead of an edge that is added.

Item: TypeAlias = "Group | Operation"
"""A group, or an operation outside of groups."""

MOST_STEPS = 512
"""Uses that are followed to find out whether fusing makes a cycle; beyond them the answer is that it does."""
_TOO_LONG = "too many uses lie between them to rule out a cycle"


class GroupOrder:
    """Ranks of a plan's groups, at first in the order of their tails; each group's only result is then its tail's."""

    def __init__(self, plan: Plan, order: Mapping[Operation, int]):
        self._plan = plan
        self._rank: dict[Item, int] = {group: order[group.tail] for group in plan.groups}
        self._positions = order
        self._moves: tuple[Group, Group, list[Item], list[Item]]
        """The last two groups without an obstacle, what the second depends on between them, and what depends on the
        first."""

    def obstacle(self, first: Group, second: Group) -> str:
        """Why fusing the two would make a cycle: what depends on the one while the other depends on it; empty if
        nothing does. That the one reads a result of the other makes no cycle.
        """
        low, high = self._sorted(first, second)
        behind = self._between(low, high, self._successors)
        if behind is None:
            return _TOO_LONG
        for item in behind:
            if any(following is high for following in self._successors(item)):
                name = describe(item.anchor) if isinstance(item, Group) else describe(item)
                return f"fusing would make a cycle through {name}"
        before = self._between(high, low, self._predecessors) if behind else []
        if before is None:
            return _TOO_LONG
        self._moves = low, high, before, behind
        return ""

    def join(self, first: Group, second: Group) -> None:
        """Ranks `first` after it was fused with `second`; called directly after `obstacle` found none between them."""
        low, high, before, behind = self._moves
        assert {low, high} == {first, second}
        ranks = sorted(self._ranked(item) for item in (low, high, *before, *behind))
        moved = [*sorted(before, key=self._ranked), first, *sorted(behind, key=self._ranked)]
        # One rank is left over: the first one, if nothing else moves.
        taken = [*ranks[: len(before) + 1], *ranks[-len(behind) :]] if behind else ranks[1:]
        del self._rank[second]
        self._rank.update(zip(moved, taken, strict=True))

    def _sorted(self, first: Group, second: Group) -> tuple[Group, Group]:
        return (first, second) if self._rank[first] < self._rank[second] else (second, first)

    def _ranked(self, item: Item) -> int:
        known = self._rank.get(item)
        return self._positions[item] if known is None and isinstance(item, Operation) else self._rank[item]

    def _between(self, start: Group, end: Group, following: Callable[[Item], Iterator[Item]]) -> list[Item] | None:
        """The items that `following` reaches from `start`, with ranks between the two; None if that takes too long."""
        low, high = sorted((self._rank[start], self._rank[end]))
        found: dict[Item, None] = {}
        waiting: list[Item] = [start]
        steps = 0
        for item in waiting:
            for each in following(item):
                steps += 1
                if steps > MOST_STEPS:
                    return None
                if each not in found and low < self._ranked(each) < high:
                    found[each] = None
                    waiting.append(each)
        return list(found)

    def _successors(self, item: Item) -> Iterator[Item]:
        """The groups, and the operations outside of groups, that read a result of `item`; some of them twice."""
        for op in item.chain if isinstance(item, Group) else [item]:
            for use in (use for result in op.results for use in result.uses):
                user = enclosing_compute(use.operation)
                yield from (home for home in self._plan.homes(user) or [user] if home is not item)

    def _predecessors(self, item: Item) -> Iterator[Item]:
        """The groups, and the operations outside of groups, that give what `item` reads; some of them twice."""
        for op in item.members() if isinstance(item, Group) else [item]:
            for owner in (tensor.owner for tensor in tensors_of(op)):
                home = self._plan.chain_home(owner) if isinstance(owner, Operation) else None
                if home is not None and home is not item:
                    yield home
                elif isinstance(owner, Operation) and not isinstance(owner, ComputeOp | WholeOp):
                    yield owner


# Groups that store several tensors: an elementwise group joins the group that computes what it reads.
#
# It saves a kernel and the reading of a tensor that was just computed. Conditions:
#
# - every element is available where the other group stores one (`epilogue_index.py`),
# - fusing makes no cycle: no third group depends on the one group while the other depends on it,
# - the stores stay what they were: elements keep their order in memory, and are floats, so that vectors of them are
#   stored as before.

MOST_CANDIDATES = 16
"""How many groups that read the same tensor, the latest ones, are tried for horizontal fusion."""


def join_groups(plan: Plan, order: Mapping[Operation, int]) -> None:
    """Joins every elementwise group to an earlier group, where that is legal and saves a kernel.

    order: the positions of all operations of the block
    """
    _Joiner(plan, order).run()


class _Joiner:
    """Looks at the groups in the order of their anchors."""

    def __init__(self, plan: Plan, order: Mapping[Operation, int]):
        self._plan = plan
        self._order = order
        self._running = GroupOrder(plan, order)
        self._readers: dict[SSAValue, list[Group]] = {}
        """The groups so far, by the tensors that their anchors read."""

    def run(self) -> None:
        """Joins what can be joined."""
        for group in sorted(self._plan.groups, key=lambda group: self._order[group.anchor]):
            anchor = group.anchor
            if not isinstance(anchor, ComputeOp) or is_anchor(anchor) or self._follow(group, anchor):
                continue
            if not self._fuse_beside(group, anchor):
                for tensor in tensors_read(anchor):
                    self._readers.setdefault(tensor, []).append(group)

    def _follow(self, group: Group, anchor: ComputeOp) -> bool:
        """Joins a group to one of those that compute what its anchor reads (vertical fusion); whether it did."""
        sources = [tensor.owner for tensor in tensors_read(anchor) if isinstance(tensor.owner, Operation)]
        homes = {op: home for op in sources if (home := self._plan.chain_home(op)) not in (None, group)}
        for producer in sorted(dict.fromkeys(homes.values()), key=self._position):
            reason = self._obstacle(producer, group, anchor)
            if not reason:
                self._running.join(producer, group)
                self._plan.join(producer, group)
                return True
            for op, home in homes.items():
                if home is producer:
                    self._plan.refuse(op, anchor, reason)
        return False

    def _position(self, group: Group) -> int:
        """Later groups first."""
        return -self._order[group.tail]

    def _obstacle(self, producer: Group, group: Group, anchor: ComputeOp) -> str:
        """Why `group` cannot be computed where `producer` stores its elements; empty if it can."""
        if reason := self._plan.size_obstacle(producer, group.size):
            return reason
        alignment = aligned(anchor, producer.alignments())
        if isinstance(alignment, str):
            return alignment
        if not alignment.keeps_order:
            return "other kernels read it, too, and the user would store its elements in another order"
        computed = {op.results[0] for op in producer.chain}
        if any(tensor in computed for prologue in group.prologues for tensor in tensors_read(prologue)):
            return "the user also reads elements of the group that are not available there"
        return _type_obstacle(producer, anchor) or self._running.obstacle(producer, group)

    def _fuse_beside(self, group: Group, anchor: ComputeOp) -> bool:
        """Joins a group to an earlier one that reads the same elements of a tensor (horizontal fusion); whether it
        did."""
        shared = [tensor for tensor in tensors_read(anchor) if _is_worth_sharing(anchor, tensor)]
        readers = [home for tensor in shared for home in self._readers.get(tensor, [])[-MOST_CANDIDATES:]]
        for other in sorted(dict.fromkeys(readers), key=self._position):
            if self._may_fuse_beside(other, group, shared):
                self._running.join(other, group)
                self._plan.fuse_horizontally(other, group)
                return True
        return False

    def _may_fuse_beside(self, first: Group, second: Group, shared: list[SSAValue]) -> bool:
        one, other = first.anchor, second.anchor
        if not isinstance(one, ComputeOp) or not isinstance(other, ComputeOp):
            return False
        if self._plan.size_obstacle(first, second.size):
            return False
        read = set(tensors_read(one))
        if not any(_reads_alike(one, other, tensor) for tensor in shared if tensor in read):
            return False
        computed = {op.results[0] for op in first.chain}
        if computed.intersection(tensor for op in second.members() for tensor in tensors_of(op)):
            return False
        if not isinstance(aligned(other, {one.result: Alignment.of(one.result)}), Alignment):
            return False
        return not _type_obstacle(first, other) and not self._running.obstacle(first, second)


def _type_obstacle(producer: Group, compute: ComputeOp) -> str:
    """Why the two tensors would not be stored by vectors of the same kind."""
    element = compute.type.get_element_type()
    if is_float(element):
        return ""
    members = [op for op in producer.chain if isinstance(op, ComputeOp | WholeOp)]
    if all(is_float(op.type.get_element_type()) for op in members):
        return f"elements of {element} beside floats would not be stored in vectors"
    return ""


def _is_worth_sharing(anchor: ComputeOp, tensor: SSAValue) -> bool:
    return not isinstance(tensor.owner, ConstantOp) and 2 * prod(shape_of(tensor)) >= prod(anchor.shape)


def _reads_alike(one: ComputeOp, other: ComputeOp, tensor: SSAValue) -> bool:
    """Whether two computes of one shape read the same element of a tensor for elements of the same index."""
    if one.shape != other.shape:
        return False
    first, second = element_index(one, tensor), element_index(other, tensor)
    if first is None or second is None:
        return False
    indices = operand_variables(one.result)
    of_one, of_other = (dict(zip(each.body.block.args, indices, strict=True)) for each in (one, other))
    return [e.substitute(of_one) for e in first] == [e.substitute(of_other) for e in second]


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


__all__ = [
    "MOST_STEPS",
    "Decision",
    "Group",
    "GroupOrder",
    "Plan",
    "describe",
    "join_groups",
    "nodes_of",
    "plan_fusion",
    "tensors_of",
]
