"""Copies and tile products of the loop dialect as operations of the cuda dialect, one for one."""

from __future__ import annotations

from xdsl.dialects.builtin import VectorType
from xdsl.ir import Operation

from treadle.dialects import cuda, loop
from treadle.dialects.loop.tiles import PRODUCT_K

_SHAPES = {8: cuda.MmaShape.M16N8K8, 16: cuda.MmaShape.M16N8K16, 32: cuda.MmaShape.M16N8K32}
"""By the extent along K."""


def cuda_tile_operation(op: Operation) -> Operation | None:
    """The cuda operation for a copy or tile product whose buffers are lowered already; None for other operations."""
    match op:
        case loop.AsyncCopyOp():
            size = op.count * (cuda.element_bytes(loop.type_of(op.source).get_element_type()) or 0)
            target = (op.buffer, op.indices)
            return cuda.CpAsyncOp(op.source, op.source_indices, *target, size, op.predicate)
        case loop.CommitOp():
            return cuda.CpAsyncCommitOp()
        case loop.WaitOp():
            return cuda.CpAsyncWaitOp(op.groups)
        case loop.LoadMatrixOp():
            return cuda.LdmatrixOp(op.buffer, op.indices, op.fragment.type, transpose=op.transpose is not None)
        case loop.RoundTf32Op():
            return cuda.RoundTf32Op(op.value)
        case loop.MmaOp():
            assert isinstance(op.a.type, VectorType)
            return cuda.MmaOp(_SHAPES[PRODUCT_K[op.a.type.element_type]], op.a, op.b, op.c)
        case _:
            return None
