"""How a product's operands lie in memory, those that the group computes where they are computed from."""

from __future__ import annotations

from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.index.algebra import stride_along
from treadle.index.expr import var
from treadle.schedules.access_analysis import DefinitionAccesses


def has_contiguous_rows(anchor: MatmulOp, operand: SSAValue, *, across: bool = False, together: int = 2) -> bool:
    """Whether pairs of an operand's elements along its last axis, or `across` along the one before, lie next to one
    another, or as many as are to lie together: those of a matrix that the group computes, where the matrix that it is
    computed from is read."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return not across
    axis = -2 if across else -1
    reads, along = producer.reads(), producer.body.block.args[axis]
    groups = var("pair", 0, max(producer.shape[axis] - 1, 0) // together)
    accesses = DefinitionAccesses(producer, {along: groups * together + var("within", 0, together - 1)})
    return not reads or any(stride_along(accesses.position(at), "within") == 1 for at in reads)
