"""How a product's operands lie in memory, those that the group computes where they are computed from."""

from __future__ import annotations

from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.index.expr import var
from treadle.index.linear import stride_along
from treadle.schedules.access_analysis import DefinitionAccesses


def has_contiguous_rows(anchor: MatmulOp, operand: SSAValue) -> bool:
    """Whether pairs of an operand's elements along its last axis lie next to one another: those of a matrix that the
    group computes, where the matrix that it is computed from is read."""
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or producer.parent_op() is not anchor.parent_op():
        return True
    reads, last = producer.reads(), producer.body.block.args[-1]
    pair = var("pair", 0, max(producer.shape[-1] - 1, 0) // 2) * 2 + var("within", 0, 1)
    accesses = DefinitionAccesses(producer, {last: pair})
    return not reads or any(stride_along(accesses.position(at), "within") == 1 for at in reads)
