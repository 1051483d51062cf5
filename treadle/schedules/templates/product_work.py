"""What the kernels of both products on GPUs have in common as work: which of them are plain, and their tensors."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType

from treadle.dialects.graph import ComputeOp, FusedOp, MatmulOp
from treadle.schedules.gpu_traffic import tensor_bytes


def comes_from_outside(anchor: MatmulOp, *, turned: bool = False) -> bool:
    """Whether no operand is computed in the anchor's group, so that it lies in memory row by row, and nothing follows
    the product. `turned`: the right one is the transpose of a matrix that does."""
    group, right = anchor.parent_op(), anchor.b.owner
    if not isinstance(group, FusedOp):
        return not turned
    inside = [operand for operand in (anchor.a, anchor.b) if operand.owner.parent_op() is group]
    alone = len(list(group.body.block.ops)) == 2 + turned
    if not turned:
        return alone and not inside
    return alone and inside == [anchor.b] and isinstance(right, ComputeOp) and _is_transpose(right)


def _is_transpose(compute: ComputeOp) -> bool:
    """Whether a definition exchanges the last two dimensions of a tensor, all of it, and does nothing else."""
    if len(list(compute.body.block.ops)) != 2 or len(compute.reads()) != 1:
        return False
    *batch, row, column = compute.body.block.args
    (read,) = compute.reads()
    assert isinstance(read.source.type, TensorType)
    *_, rows, columns = read.source.type.get_shape()
    return list(read.indices) == [*batch, column, row] and compute.shape[-2:] == (columns, rows)


def bytes_of(anchor: MatmulOp, tiles: int, split_k: int, sums: int) -> int:
    """Bytes of a product's tensors and, where each of its tiles has several blocks, of their sums and the counters."""
    found = sum(map(tensor_bytes, (anchor.a, anchor.b, anchor.result)))
    return found + (tiles * (split_k * sums + 1) * 4 if split_k > 1 else 0)


__all__ = ["bytes_of", "comes_from_outside"]
