"""Which dimensions of an operator's operands have to be masked before it.

A tensor of symbolic extents is computed as one of its largest shape, whose elements beyond the extents are arbitrary.
An operator that would let them in, such as a sum over a symbolic dimension, reads masked operands instead: their
elements beyond the extents are the identity of what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from treadle.dialects.graph import (
    ArgReductionOp,
    ConvOp,
    ConvTransposeOp,
    MatmulOp,
    Operator,
    PadOp,
    PoolOp,
    ReductionOp,
    SoftmaxOp,
)
from treadle.dialects.graph.definition import Misfit, int_list
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.graph.reduction import identity
from treadle.frontends.common.extent import Array, Extent
from treadle.frontends.common.result_extents import Extents, kernel_extents, symbolic_dims


@dataclass(frozen=True)
class Masked:
    """An operand's dimension whose positions beyond its extent are to be `fill`."""

    operand: int
    dim: int
    fill: float


_MASKS: dict[type[Operator], Callable[..., list[Masked]]] = {}


def masked_operands(op: Operator, operands: Sequence[Extents], known: Sequence[Array | None]) -> list[Masked]:
    """Which dimensions of an operator's operands have to be masked first; `known` has the operands that are known."""
    if isinstance(op, PadOp):
        return _masks_of_pad(op, operands, known[1])
    rule = _MASKS.get(type(op))
    return [] if rule is None else rule(op, operands)


def _masks(*kinds: type[Operator]) -> Callable[[Callable[..., list[Masked]]], Callable[..., list[Masked]]]:
    def register(rule: Callable[..., list[Masked]]) -> Callable[..., list[Masked]]:
        _MASKS.update(dict.fromkeys(kinds, rule))
        return rule

    return register


@_masks(ReductionOp)
def _masks_of_reduction(op: ReductionOp, operands: Sequence[Extents]) -> list[Masked]:
    fill = fold_identity(op.kind.data, op.type.get_element_type())
    return [Masked(0, d, fill) for d in symbolic_dims(operands[0], int_list(op.properties, "dims"))]


@_masks(ArgReductionOp)
def _masks_of_arg_reduction(op: ArgReductionOp, operands: Sequence[Extents]) -> list[Masked]:
    assert isinstance(op.x.type, TensorType)
    fill = identity(op.kind.data, op.x.type.get_element_type())
    return [Masked(0, d, fill) for d in symbolic_dims(operands[0], [op.dim.value.data])]


@_masks(SoftmaxOp)
def _masks_of_softmax(op: SoftmaxOp, operands: Sequence[Extents]) -> list[Masked]:
    return [Masked(0, d, -inf) for d in symbolic_dims(operands[0], [op.dim.value.data])]


@_masks(MatmulOp)
def _masks_of_matmul(op: MatmulOp, operands: Sequence[Extents]) -> list[Masked]:
    a, b = operands
    if not isinstance(a[-1], Extent):
        return []
    return [Masked(0, len(a) - 1, 0.0), Masked(1, len(b) - 2, 0.0)]


def _masks_of_pad(op: PadOp, operands: Sequence[Extents], value: Array | None) -> list[Masked]:
    pads, rank = int_list(op.properties, "pads"), len(op.shape)
    found = [d for d in symbolic_dims(operands[0], range(rank)) if pads[d + rank]]
    if found and value is None:
        raise Misfit("padding behind a symbolic extent with a value that is not known", "a constant")
    return [] if value is None else [Masked(0, d, value.reshape(-1)[0].item()) for d in found]


@_masks(ConvOp, PoolOp)
def _masks_of_window(op: ConvOp | PoolOp, operands: Sequence[Extents]) -> list[Masked]:
    """Only where windows reach beyond the extent, which padding behind it allows."""
    pads, rank = int_list(op.properties, "pads"), len(op.shape) - 2
    fill = identity("max", op.type.get_element_type()) if isinstance(op, PoolOp) and op.kind.data == "max" else 0.0
    return [Masked(0, d, fill) for d in symbolic_dims(operands[0], range(2, rank + 2)) if pads[d - 2 + rank]]


@_masks(ConvTransposeOp)
def _masks_of_transposed(op: ConvTransposeOp, operands: Sequence[Extents]) -> list[Masked]:
    kernel = kernel_extents(op)
    return [Masked(0, d, 0.0) for d in symbolic_dims(operands[0], range(2, len(op.shape))) if kernel[d - 2] > 1]


def fold_identity(kind: str, element: Attribute) -> float:
    """What leaves a fold as it is; a sum of floats, whose terms may all be -0, takes -0."""
    return -0.0 if kind == "add" and is_float(element) else identity(kind, element)


__all__ = ["Masked", "fold_identity", "masked_operands"]
