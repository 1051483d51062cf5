"""What the kernels of both products on GPUs have in common as work: which of them are plain, and their tensors."""

from __future__ import annotations

from xdsl.ir import SSAValue

from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.schedules.gpu_traffic import tensor_bytes


def comes_from_outside(anchor: MatmulOp, *operands: SSAValue) -> bool:
    """Whether no operand is computed in the anchor's group, so that it lies in memory row by row, and nothing follows
    the product."""
    group = anchor.parent_op()
    alone = not isinstance(group, FusedOp) or len(list(group.body.block.ops)) == 2
    return alone and not any(operand.owner.parent_op() is group for operand in operands if group is not None)


def bytes_of(anchor: MatmulOp, tiles: int, split_k: int, sums: int) -> int:
    """Bytes of a product's tensors and, where each of its tiles has several blocks, of their sums and the counters."""
    found = sum(map(tensor_bytes, (anchor.a, anchor.b, anchor.result)))
    return found + (tiles * (split_k * sums + 1) * 4 if split_k > 1 else 0)


__all__ = ["bytes_of", "comes_from_outside"]
