"""Results of products that are quantised: bytes, of which four take the place of one sum."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import i8
from xdsl.ir import SSAValue

from treadle.dialects.graph import ComputeOp, PackedMatmulOp, WholeOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.dtypes import ui8
from treadle.passes.graph.definition_analysis import has_only_users, shape_of


def makes_bytes(compute: ComputeOp) -> bool:
    """Whether the elements of a definition are floats made bytes."""
    is_rounded = isinstance(yielded(compute.body).owner, arith.FPToUIOp | arith.FPToSIOp)
    return is_rounded and compute.type.get_element_type() in (i8, ui8)


def is_narrow_result(compute: ComputeOp) -> bool:
    """Whether a definition makes bytes of floats that are computed, element by element, from one product's result,
    which nothing else reads."""
    if not makes_bytes(compute):
        return False
    reader = compute
    while True:
        source = _only_large(reader)
        if source is None or not has_only_users(source, (reader,)):
            return False
        if not isinstance(source.owner, ComputeOp):
            return isinstance(source.owner, PackedMatmulOp | WholeOp)
        reader = source.owner


def _only_large(compute: ComputeOp) -> SSAValue | None:
    """The one tensor of as many elements as the result that a definition reads."""
    volume = prod(compute.shape)
    found = [tensor for tensor in compute.tensors() if prod(shape_of(tensor)) == volume]
    return found[0] if len(found) == 1 else None


__all__ = ["is_narrow_result", "makes_bytes"]
