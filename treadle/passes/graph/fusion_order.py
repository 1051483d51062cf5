"""A topological order of the groups, kept up to date while groups are fused, so that few of them are searched for a
cycle.

The ranks are the positions in that order. A path between two groups passes only through ranks between theirs.
When two groups are fused, those in between that depend on the first move after both, and those that the second depends
on move in front. Source: Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs"
(2006), for two nodes that become one instead of an edge that is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from xdsl.ir import Operation

from treadle.dialects.graph import ComputeOp, WholeOp
from treadle.dialects.graph.fused import enclosing_compute
from treadle.passes.graph.fusion_group import Group, Plan, describe, tensors_of

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


__all__ = ["MOST_STEPS", "GroupOrder"]
