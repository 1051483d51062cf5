"""Which member of a fused group is scheduled."""

from __future__ import annotations

from treadle.dialects.graph import ComputeOp, FusedOp, ReduceOp, WholeOp
from treadle.dialects.graph.compute import yielded_values
from treadle.dialects.location import location_of
from treadle.errors import TreadleError
from treadle.schedules.template import Anchor


def anchor_of(fused: FusedOp) -> Anchor:
    """The group's product or reduction; without one, the operator that gives the group's result; of several results,
    the first member, with which the others are aligned.

    TreadleError where the group has two candidates, or is scheduled already.
    """
    members = list(fused.body.block.ops)
    heavy: list[Anchor] = [
        op
        for op in members
        if isinstance(op, WholeOp)
        or (isinstance(op, ComputeOp) and any(isinstance(o, ReduceOp) for o in op.body.walk()))
    ]
    if len(heavy) > 1:
        raise TreadleError(
            f"group {fused.label.data!r} has {len(heavy)} anchors", location_of(fused), "one matmul or reduction"
        )
    if heavy:
        return heavy[0]
    results = yielded_values(fused.body)
    last = results[0].owner if len(results) == 1 else members[0]
    if not isinstance(last, ComputeOp):
        raise TreadleError(f"group {fused.label.data!r} gives no graph.compute, and has no matmul", location_of(fused))
    return last
