"""Products of floats of 8 bits: which of them tensor cores multiply, before it is known what fusion brings."""

from __future__ import annotations

from xdsl.dialects.builtin import DYNAMIC_INDEX, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import CastOp, MatmulOp, TransposeOp
from treadle.dialects.graph.definition import int_list
from treadle.passes.graph.rewriting import constant_of, replace_with, shape_of
from treadle.target import Target
from treadle.target.tensor_map import ALIGNMENT


def is_multiplied(product: MatmulOp, target: Target) -> bool:
    """Whether tensor cores of the target multiply floats of 8 bits, and the operands lie along the terms, in rows of
    whole multiples of 16 bytes. A constant right operand is stored so (`graph-multiply-bytes`)."""
    if not target.has_warpgroups or DYNAMIC_INDEX in product.shape or product.reduction_extent % ALIGNMENT:
        return False
    return _lies_along(product.a, -1) and (_is_constant(product.b) or _lies_along(product.b, -2))


def widen_unless_multiplied(product: MatmulOp, target: Target) -> None:
    """Replaces a product of floats of 8 bits by one of f32, unless tensor cores multiply it."""
    if not is_multiplied(product, target):
        wide = [CastOp(operand, f32) for operand in product.operands]
        replace_with(product, [*wide, MatmulOp(wide[0].result, wide[1].result)])


def _lies_along(operand: SSAValue, axis: int) -> bool:
    """Whether the elements along an axis are neighbours in memory: of a tensor as it is, or transposed."""
    op, rank = operand.owner, len(shape_of(operand))
    last = int_list(op.properties, "perm").index(rank - 1) if isinstance(op, TransposeOp) else rank - 1
    return last == rank + axis


def _is_constant(operand: SSAValue) -> bool:
    """Whether an operand is a constant, or moves one."""
    while isinstance(operand.owner, TransposeOp):
        operand = operand.owner.x
    return constant_of(operand) is not None


__all__ = ["is_multiplied", "widen_unless_multiplied"]
