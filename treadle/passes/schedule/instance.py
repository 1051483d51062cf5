"""A product of a ranged model as it is in one call: with the extents that somebody needs then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from treadle.dialects.graph import ComputeOp, DemandedAttr, FusedOp, MatmulOp, YieldOp
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.graph.demand.facts import Extents, extent_below, unknown_extent

_LESS = arith.CMPI_COMPARISON_OPERATIONS.index("slt")


def needed_shape(shape: Sequence[int], demanded: DemandedAttr, extents: Sequence[int]) -> tuple[int, ...]:
    """How many indices of each dimension are demanded where the extents have these values.

    Constraints on several dimensions at once are left out: they need more elements than there are counted.
    TreadleError for one on an extent that has no value.
    """
    unknown = [constraint for constraint in demanded.data if constraint.extent >= len(extents)]
    if unknown:
        raise unknown_extent(unknown[0].extent, len(extents))
    found: list[int] = []
    for d, extent in enumerate(shape):
        inside = np.ones(extent, np.bool_)
        for constraint in demanded.data:
            if {str(v) for v in constraint.index.vars()} == {f"d{d}"}:
                indices: Any = np.arange(extent)
                inside &= constraint.index.evaluate({f"d{d}": indices}) < extents[constraint.extent]
        found.append(max(1, int(inside.sum())))
    return tuple(found)


def needed_terms(anchor: MatmulOp, values: Sequence[int], extents: Extents) -> int:
    """How many terms of a sum a call with these values of the extents computes: those that the mask of the right
    operand's rows leaves, where loop-end-sums ends the sum."""
    producer, terms = anchor.b.owner, anchor.reduction_extent
    if isinstance(producer, ComputeOp) and len(producer.body.block.args) > 1:
        row = producer.body.block.args[-2]
        for read in producer.reads():
            test = None if read.predicate is None else read.predicate.owner
            if isinstance(test, arith.CmpiOp) and test.predicate.value.data == _LESS and test.lhs is row:
                number = extent_below(test.rhs, extents)
                terms = terms if number is None else min(terms, max(1, values[number]))
    return terms


def instance_of(
    anchor: MatmulOp, shape: Sequence[int], *, terms: int | None = None, is_plain: bool = False
) -> MatmulOp:
    """A product of this result and of so many terms, in a group with nothing but the definitions of its operands: these
    have fewer elements, and read what they read of tensors as large as they are. The operands of a plain one come from
    outside."""
    *batch, rows, columns = shape
    block, group, terms = Block(), anchor.parent_op(), terms or anchor.reduction_extent
    operands: list[SSAValue] = []
    for operand, last in ((anchor.a, (rows, terms)), (anchor.b, (terms, columns))):
        own = shape_of(operand)
        wanted = (*(batch if len(own) > 2 else ()), *last)
        operands.append(_smaller(operand, wanted, block, None if is_plain else group))
    product = MatmulOp(*operands, sums=anchor.sums)
    product.precision = anchor.precision
    block.add_ops([product, YieldOp(product.result)])
    FusedOp("instance", Region(block))
    return product


def _smaller(operand: SSAValue, shape: Sequence[int], block: Block, group: Operation | None) -> SSAValue:
    """An operand with fewer elements: its definition, if the group has that, else a tensor from outside."""
    assert isinstance(operand.type, TensorType)
    type = TensorType(operand.type.get_element_type(), shape)
    producer = operand.owner
    if not isinstance(producer, ComputeOp) or group is None or not group.is_ancestor(producer):
        return Block(arg_types=[type]).args[0]
    copy = producer.clone()
    block.add_op(copy)
    return Rewriter.replace_value_with_new_type(copy.result, type)


__all__ = ["instance_of", "needed_shape", "needed_terms"]
