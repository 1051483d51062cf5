"""The order of groups while they are joined, against a search of the whole graph."""

from __future__ import annotations

from random import Random

import pytest
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from tests.helpers.graphs import Graph, random
from treadle.dialects.graph import BinaryOp, ComputeOp
from treadle.passes.graph import fusion_plan
from treadle.passes.graph.definition_analysis import users_of
from treadle.passes.graph.fusion_group import Group, Plan
from treadle.passes.graph.fusion_plan import GroupOrder
from treadle.passes.graph.graph_define import GraphDefinePass
from treadle.target import Target


def drawn(rng: Random) -> tuple[Plan, dict[Operation, int]]:
    """Thirty sums of two earlier values, each a group of its own."""
    graph = Graph(random(2, 4))
    values = [graph[0]]
    for _ in range(30):
        values.append(graph.add(BinaryOp("add", rng.choice(values[-6:]), rng.choice(values))))
    module = graph.module(*values[-2:])
    GraphDefinePass().apply(Context(), module)
    (main,) = [op for op in module.ops if isinstance(op, FuncOp)]
    plan = Plan(Target.parse("cpu"))
    for op in main.body.block.ops:
        if isinstance(op, ComputeOp):
            plan.open(op)
    return plan, {op: n for n, op in enumerate(main.body.block.ops)}


def readers(plan: Plan, group: Group) -> set[Group]:
    found = {home for op in group.chain for user in users_of(op.results[0]) for home in plan.homes(user)}
    return found - {group}


def waits(plan: Plan, start: Group, end: Group) -> bool:
    """Whether a path of at least one group in between leads from `start` to `end`."""
    waiting = [each for each in readers(plan, start) if each is not end]
    seen = set(waiting)
    while waiting:
        following = readers(plan, waiting.pop())
        if end in following:
            return True
        waiting += following - seen
        seen |= following
    return False


@pytest.mark.parametrize("seed", range(5))
def test_what_may_be_joined_is_what_no_other_group_waits_between(seed: int) -> None:
    rng = Random(seed)
    plan, positions = drawn(rng)
    order = GroupOrder(plan, positions)
    joined = refused = 0
    while len(plan.groups) > 3 and joined + refused < 60:
        first, second = rng.sample(plan.groups, 2)
        expected = waits(plan, first, second) or waits(plan, second, first)
        assert bool(order.obstacle(first, second)) == expected
        if expected:
            refused += 1
            continue
        order.join(first, second)
        plan.join(first, second)
        joined += 1
    assert joined > 5 and refused > 5


def test_a_search_that_takes_too_long_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, positions = drawn(Random(0))
    order = GroupOrder(plan, positions)
    first, second = plan.groups[0], plan.groups[-1]
    monkeypatch.setattr(fusion_plan, "MOST_STEPS", 1)
    assert order.obstacle(first, second).startswith("too many uses lie between them")
