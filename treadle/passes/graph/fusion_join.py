"""Groups that store several tensors: an elementwise group joins the one that computes what it reads.

What is saved is a kernel and the reading of a tensor that was just computed.  What must hold:

- every element is at hand where the other group stores one (`epilogue_index.py`),
- no third group stands between them, which would wait for the one group while the other waits for it,
- the stores stay what they were: elements keep their order in memory, and are floats, so that vectors of them are
  stored as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, ConstantOp, WholeOp
from treadle.dialects.graph.dtypes import is_float
from treadle.passes.graph.epilogue_index import Alignment, aligned
from treadle.passes.graph.fusion_group import Group, Plan, describe, is_anchor, tensors_of
from treadle.passes.graph.properties import element_index, operand_variables, shape_of, users_of


def join_groups(plan: Plan, order: Mapping[Operation, int]) -> None:
    """Joins every group without an anchor of weight to an earlier one, where that is legal and saves a kernel."""
    for group in sorted(plan.groups, key=lambda group: order[group.anchor]):
        anchor = group.anchor
        if isinstance(anchor, ComputeOp) and not is_anchor(anchor) and not _follow(plan, group, order):
            _stand_beside(plan, group, order)


def _follow(plan: Plan, group: Group, order: Mapping[Operation, int]) -> bool:
    """Joins a group to one of those that compute what its anchor reads; whether it did."""
    anchor = group.anchor
    assert isinstance(anchor, ComputeOp)
    sources = [tensor.owner for tensor in anchor.tensors() if isinstance(tensor.owner, Operation)]
    producers = [home for op in sources for home in plan.homes(op) if home is not group and op in home.chain]
    for producer in sorted(dict.fromkeys(producers), key=lambda home: -order[home.tail]):
        reason = _obstacle(plan, producer, group)
        if not reason:
            plan.join(producer, group)
            return True
        for op in sources:
            if op in producer.chain:
                plan.refuse(op, anchor, reason)
    return False


def _obstacle(plan: Plan, producer: Group, group: Group) -> str:
    """Why `group` cannot be computed where `producer` stores its elements; empty if it can."""
    anchor = group.anchor
    assert isinstance(anchor, ComputeOp)
    alignment = aligned(anchor, producer.alignments())
    if isinstance(alignment, str):
        return alignment
    if not alignment.keeps_order:
        return "other kernels read it, too, and the user would store its elements in another order"
    computed = {op.results[0] for op in producer.chain}
    if any(tensor in computed for prologue in group.prologues for tensor in prologue.tensors()):
        return "the user also reads elements of the group that are not at hand there"
    return _type_obstacle(producer, anchor) or _cycle(plan, producer, group)


def _type_obstacle(producer: Group, compute: ComputeOp) -> str:
    """Why the stores of two tensors would not be alike."""
    members = [op for op in producer.chain if isinstance(op, ComputeOp | WholeOp)]
    elements = [op.type.get_element_type() for op in members]
    element = compute.type.get_element_type()
    if all(map(is_float, elements)) and not is_float(element):
        return f"elements of {element} beside floats would not be stored in vectors"
    return ""


def _cycle(plan: Plan, first: Group, second: Group) -> str:
    """The group that would wait for `first` while `second` waits for it; empty if there is none."""
    for between in _successors(plan, first):
        if between is not second and second in _reachable(plan, between):
            name = describe(between.anchor) if isinstance(between, Group) else describe(between)
            return f"{name} needs the one and gives the other what it needs"
    return ""


def _reachable(plan: Plan, start: Group | Operation) -> set[Group | Operation]:
    """The groups that wait for `start`, itself included."""
    found: set[Group | Operation] = {start}
    waiting = [start]
    while waiting:
        following = [each for each in _successors(plan, waiting.pop()) if each not in found]
        found.update(following)
        waiting += following
    return found


def _successors(plan: Plan, item: Group | Operation) -> Iterator[Group | Operation]:
    """The groups, and the operations outside of groups, that read a result of `item`."""
    found: set[Group | Operation] = set()
    for op in item.chain if isinstance(item, Group) else [item]:
        for user in (user for result in op.results for user in users_of(result)):
            found.update(home for home in plan.homes(user) or [user] if home is not item)
    yield from found


def _stand_beside(plan: Plan, group: Group, order: Mapping[Operation, int]) -> None:
    """Joins a group to an earlier one that reads a tensor of its size at the same elements."""
    anchor = group.anchor
    assert isinstance(anchor, ComputeOp)
    shared = [tensor for tensor in anchor.tensors() if _is_worth_sharing(anchor, tensor)]
    readers = [home for tensor in shared for user in users_of(tensor) for home in plan.homes(user)]
    for other in sorted(dict.fromkeys(readers), key=lambda home: -order[home.tail]):
        if order[other.anchor] < order[anchor] and _may_stand_beside(plan, other, group, shared):
            plan.put_beside(other, group)
            return


def _is_worth_sharing(anchor: ComputeOp, tensor: SSAValue) -> bool:
    return not isinstance(tensor.owner, ConstantOp) and 2 * prod(shape_of(tensor)) >= prod(anchor.shape)


def _may_stand_beside(plan: Plan, first: Group, second: Group, shared: list[SSAValue]) -> bool:
    one, other = first.anchor, second.anchor
    if not isinstance(one, ComputeOp) or is_anchor(one) or not isinstance(other, ComputeOp):
        return False
    same = any(_reads_alike(one, other, tensor) for tensor in shared if tensor in one.tensors())
    computed = {op.results[0] for op in first.chain}
    if not same or computed.intersection(tensor for op in second.members() for tensor in tensors_of(op)):
        return False
    if not isinstance(aligned(other, {one.result: Alignment.of(one.result)}), Alignment):
        return False
    return not _type_obstacle(first, other) and not _depends(plan, first, second)


def _depends(plan: Plan, first: Group, second: Group) -> bool:
    return second in _reachable(plan, first) or first in _reachable(plan, second)


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


__all__ = ["join_groups"]
