"""Which constants a call reads a part of: where data decide the addresses, as of the rows of an embedding."""

from __future__ import annotations

from collections.abc import Collection

from xdsl.dialects import memref, vector
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue, Use
from xdsl.traits import SymbolTable

from treadle.dialects.host import BufferOp, LaunchOp

_LOADS = (memref.LoadOp, vector.LoadOp)


def sparse_reads(buffer: BufferOp, module: ModuleOp) -> bool:
    """Whether all that the launches of a lowered module do with a buffer is to load from addresses that depend on what
    was loaded before. A buffer that nobody reads is not."""
    uses = list(buffer.buffer.uses)
    return bool(uses) and all(_is_sparse(use, module) for use in uses)


def _is_sparse(use: Use, module: ModuleOp) -> bool:
    if not isinstance(use.operation, LaunchOp):
        return False
    kernel = SymbolTable.lookup_symbol(module, use.operation.kernel)
    if kernel is None or not kernel.regions or not kernel.regions[0].blocks:
        return False
    reads = [each.operation for each in kernel.regions[0].block.args[use.index].uses]
    return bool(reads) and all(isinstance(each, _LOADS) and _is_indirect(each.indices) for each in reads)


def _is_indirect(indices: Collection[SSAValue]) -> bool:
    """Whether a value on the way to an address was loaded."""
    waiting, seen = list(indices), set[Operation]()
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, Block) or owner in seen:
            continue
        if isinstance(owner, _LOADS):
            return True
        seen.add(owner)
        waiting += owner.operands
        ends = [region.block.last_op for region in owner.regions]
        waiting += [value for end in ends if end is not None for value in end.operands]
    return False


__all__ = ["sparse_reads"]
