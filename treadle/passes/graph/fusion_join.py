"""Groups that store several tensors: an elementwise group joins the group that computes what it reads.

It saves a kernel and the reading of a tensor that was just computed. Conditions:

- every element is available where the other group stores one (`epilogue_index.py`),
- fusing makes no cycle: no third group depends on the one group while the other depends on it,
- the stores stay what they were: elements keep their order in memory, and are floats, so that vectors of them are
  stored as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, ConstantOp, WholeOp
from treadle.dialects.graph.dtypes import is_float
from treadle.passes.graph.definition_analysis import element_index, operand_variables, shape_of, tensors_read
from treadle.passes.graph.epilogue_index import Alignment, aligned
from treadle.passes.graph.fusion_group import Group, Plan, is_anchor, tensors_of
from treadle.passes.graph.fusion_order import GroupOrder

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


__all__ = ["join_groups"]
