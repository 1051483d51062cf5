"""loop-to-cuda: the loop dialect's kernels, ids, buffers, barriers, copies and tile products become the cuda
dialect's."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.cuda import (
    AllocOp,
    BarrierOp,
    BlockIdOp,
    Dimension,
    KernelOp,
    ReturnOp,
    Space,
    SpaceAttr,
    ThreadIdOp,
)
from treadle.dialects.cuda.kernel import MAX_STATIC_SHARED
from treadle.dialects.loop import AllocOp as LoopAllocOp
from treadle.dialects.loop import ArriveOp, FuncOp, WarpReduceOp
from treadle.dialects.loop import BarrierOp as LoopBarrierOp
from treadle.dialects.loop import SpaceAttr as LoopSpaceAttr
from treadle.passes.lower.arrive import lower_arrive
from treadle.passes.lower.cuda_tiles import cuda_tile_operation
from treadle.passes.lower.identifiers import rename_kernels
from treadle.passes.lower.warp_reduce import lower_warp_reduce


@dataclass(frozen=True)
class LoopToCudaPass(ModulePass):
    """Turns each `loop.func` into a `cuda.kernel` of the same name, launched with one dimension of blocks and threads.

    ```mlir
    loop.func @scale(%A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 2) threads(%t in 32) comment "Mul" {
      %tile = loop.alloc : memref<32xf32, #loop.space<shared>>
      loop.barrier
    }
    ```
    becomes
    ```mlir
    cuda.kernel @scale(%A: memref<64xf32>, %C: memref<64xf32>) grid = [2, 1, 1] block = [32, 1, 1]
        attributes {comment = "Mul"} {
      %tile = cuda.alloc : memref<32xf32, #cuda.space<shared>>
      %b = cuda.block_id x : index
      %t = cuda.thread_id x : index
      cuda.barrier
      cuda.return
    }
    ```
    Shared buffers move to the kernel's beginning; all become `dynamic` if they exceed the 48 KiB of static ones.
    """

    name = "loop-to-cuda"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rename_kernels(op)
        for kernel in [inner for inner in op.ops if isinstance(inner, FuncOp)]:
            _lower_kernel(kernel)


def _lower_kernel(kernel: FuncOp) -> None:
    shape = [kernel.grid.value.data, 1, 1], [kernel.threads.value.data, 1, 1]
    block = Block(arg_types=[_in_global_memory(buffer.type) for buffer in kernel.buffers])
    for new, old in zip(block.args, kernel.buffers, strict=True):
        new.name_hint = old.name_hint
    ids = BlockIdOp(Dimension.X), ThreadIdOp(Dimension.X)
    for op, value in zip(ids, (kernel.block_id, kernel.thread_id), strict=True):
        op.result.name_hint = value.name_hint
    end = ReturnOp()
    for op in (*ids, end):
        op.location = kernel.location
    block.add_ops([*ids, end])
    _lower_body(kernel, ids[0])
    Rewriter.inline_block(kernel.body.block, InsertPoint.before(end), [*block.args, ids[0].result, ids[1].result])
    lowered = KernelOp(kernel.sym_name, *shape, Region(block))
    if kernel.comment is not None:
        lowered.attributes["comment"] = kernel.comment
    if kernel.operations is not None:
        lowered.attributes["operations"] = kernel.operations
    if kernel.min_blocks_per_sm is not None:
        lowered.attributes["min_blocks_per_sm"] = kernel.min_blocks_per_sm
    lowered.location = kernel.location
    Rewriter.replace_op(kernel, lowered)
    if lowered.shared_bytes(dynamic=False) > MAX_STATIC_SHARED:
        _make_dynamic(lowered)


def _in_global_memory(type: Attribute) -> Attribute:
    """The type of an argument: buffers of the launch are in global memory, as tensors are."""
    if not isinstance(type, MemRefType) or not isinstance(type.memory_space, LoopSpaceAttr):
        return type
    return MemRefType(type.element_type, type.shape, type.layout)


def _lower_body(kernel: FuncOp, first: Operation) -> None:
    """Replaces the loop dialect's operations; shared buffers go before `first`."""
    for buffer in list(kernel.buffers):
        type = _in_global_memory(buffer.type)
        if type != buffer.type:
            Rewriter.replace_value_with_new_type(buffer, type)
    for op in [inner for inner in kernel.body.walk() if isinstance(inner, ArriveOp)]:
        lower_arrive(op, kernel.thread_id)
    for op in [inner for inner in kernel.body.walk() if isinstance(inner, LoopAllocOp)]:
        _lower_alloc(op, first)
    for op in list(kernel.body.walk()):
        if isinstance(op, WarpReduceOp):
            lower_warp_reduce(op)
            continue
        new = BarrierOp() if isinstance(op, LoopBarrierOp) else cuda_tile_operation(op)
        if new is None:
            continue
        new.location = op.location
        for old_result, result in zip(op.results, new.results, strict=True):
            result.name_hint = old_result.name_hint
        Rewriter.replace_op(op, new)


def _lower_alloc(op: LoopAllocOp, first: Operation) -> None:
    old = op.buffer.type
    assert isinstance(old, MemRefType) and isinstance(old.memory_space, LoopSpaceAttr)
    space = Space.SHARED if old.memory_space.data.value == "shared" else Space.LOCAL
    alloc = AllocOp(MemRefType(old.element_type, old.shape, old.layout, SpaceAttr(space)))
    alloc.location = op.location
    alloc.buffer.name_hint = op.buffer.name_hint
    Rewriter.insert_op(alloc, InsertPoint.before(first if space is Space.SHARED else op))
    op.buffer.replace_all_uses_with(alloc.buffer)
    Rewriter.erase_op(op)


def _make_dynamic(kernel: KernelOp) -> None:
    for op in [inner for inner in kernel.body.block.ops if isinstance(inner, AllocOp)]:
        type = op.buffer_type
        if type.memory_space == SpaceAttr(Space.SHARED):
            new = AllocOp(type, dynamic=True)
            new.location = op.location
            new.buffer.name_hint = op.buffer.name_hint
            Rewriter.replace_op(op, new)
