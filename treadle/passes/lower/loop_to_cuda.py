"""loop-to-cuda: the loop dialect's kernels, ids, buffers, barriers, copies and tile products become the cuda
dialect's.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp, VectorType, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects import cuda, loop
from treadle.dialects.cuda import (
    AllocOp,
    BarrierOp,
    BlockIdOp,
    Dimension,
    KernelOp,
    ReturnOp,
    ShuffleMode,
    ShuffleOp,
    Space,
    SpaceAttr,
    ThreadIdOp,
)
from treadle.dialects.cuda.kernel import MAX_STATIC_SHARED
from treadle.dialects.graph.definition import DefinitionBuilder
from treadle.dialects.hopper import TensorLoadOp, TensorStoreOp, WgmmaOp, WgmmaRegistersOp
from treadle.dialects.loop import AllocOp as LoopAllocOp
from treadle.dialects.loop import ArriveOp, FuncOp, WarpReduceOp
from treadle.dialects.loop import BarrierOp as LoopBarrierOp
from treadle.dialects.loop import SpaceAttr as LoopSpaceAttr
from treadle.dialects.loop.tiles import PRODUCT_K
from treadle.passes.lower.identifiers import rename_kernels

# The arrival of a block as that of one of its threads, between barriers.


def lower_arrive(op: loop.ArriveOp, thread: SSAValue) -> None:
    """Replaces an arrival: the first thread arrives, and broadcasts the result through shared memory.

    ```mlir
    %last = loop.arrive %counters[%tile] of 4 : memref<16xi32, #loop.space<zeroed>>
    ```
    becomes
    ```mlir
    %is_last = loop.alloc : memref<1xi32, #loop.space<shared>>
    cuda.barrier
    scf.if %is_first {
      %0 = cuda.arrive %counters[%tile] of 4 : memref<16xi32>
      %1 = arith.extui %0 : i1 to i32
      memref.store %1, %is_last[%c0] : memref<1xi32, #loop.space<shared>>
    }
    cuda.barrier
    %2 = memref.load %is_last[%c0] : memref<1xi32, #loop.space<shared>>
    %last = arith.cmpi ne, %2, %c0_i32 : i32
    ```
    """
    block = Block(arg_types=[op.counters.type, op.index.type, thread.type])
    counters, index, first = block.args
    b = DefinitionBuilder(block)
    is_last = loop.AllocOp(loop.buffer_type((1,), i32, loop.Space.SHARED))
    is_last.buffer.name_hint = f"{op.result.name_hint or 'last'}_flag"
    b.insert(is_last)
    zero, nothing = b.constant(0), b.constant(0, i32)
    is_first = b.binary("eq", first, zero)
    arrive = cuda.ArriveOp(counters, [index], op.count)
    arrive.last.name_hint = op.result.name_hint
    word = arith.ExtUIOp(arrive.last, i32)
    store = memref.StoreOp.get(word.result, is_last.buffer, [zero])
    inside = Block([arrive, word, store, scf.YieldOp()])
    load = memref.LoadOp.get(is_last.buffer, [zero])
    last = arith.CmpiOp(load.res, nothing, "ne")
    last.result.name_hint = op.result.name_hint
    block.add_ops([cuda.BarrierOp(), scf.IfOp(is_first, [], Region(inside)), cuda.BarrierOp(), load, last])
    for new in block.walk():
        new.location = op.location
    Rewriter.inline_block(block, InsertPoint.before(op), [op.counters, op.index, thread])
    Rewriter.replace_op(op, [], [last.result])


# Copies and tile products of the loop dialect as operations of the cuda dialect, one for one.

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
        case loop.ShuffleOp():
            return ShuffleOp(ShuffleMode.IDX, op.value, op.lane)
        case loop.MmaOp():
            assert isinstance(op.a.type, VectorType)
            return cuda.MmaOp(_SHAPES[PRODUCT_K[op.a.type.element_type]], op.a, op.b, op.c)
        case _:
            return None


# Folds of a warp as rounds of shuffles.


def lower_warp_reduce(op: WarpReduceOp) -> None:
    """Replaces a fold by one shuffle and one operation a round.

    ```mlir
    %s = loop.warp_reduce add %v over 4 : f32
    ```
    becomes
    ```mlir
    %a = cuda.shuffle xor %v, %c2 : f32
    %b = arith.addf %v, %a : f32
    %c = cuda.shuffle xor %b, %c1 : f32
    %s = arith.addf %b, %c : f32
    ```
    """
    block = Block(arg_types=[op.value.type])
    b = DefinitionBuilder(block)
    value: SSAValue = block.args[0]
    distance = op.lanes // 2
    while distance:
        other = b.insert(ShuffleOp(ShuffleMode.XOR, value, b.constant(distance)))
        value = b.binary(op.kind.data, value, other)
        distance //= 2
    for new in block.ops:
        new.location = op.location
    value.name_hint = op.result.name_hint
    Rewriter.inline_block(block, InsertPoint.before(op), [op.value])
    Rewriter.replace_op(op, [], [value])


_TILES = (TensorLoadOp, TensorStoreOp, WgmmaOp, WgmmaRegistersOp)
_TILE_ALIGNMENT = 1024


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
    Shared buffers move to the kernel's beginning; all become `dynamic` if they exceed the 48 KiB of static ones. Those
    that copies of boxes and products of warpgroups use begin at multiples of 1024 bytes, after which swizzles repeat.
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
    if kernel.cluster is not None:
        lowered.attributes["cluster"] = kernel.cluster
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
    users = (use.operation for use in op.buffer.uses)
    is_tile = space is Space.SHARED and any(isinstance(user, _TILES) for user in users)
    type = MemRefType(old.element_type, old.shape, old.layout, SpaceAttr(space))
    alloc = AllocOp(type, aligned=_TILE_ALIGNMENT) if is_tile else AllocOp(type)
    alloc.location = op.location
    alloc.buffer.name_hint = op.buffer.name_hint
    Rewriter.insert_op(alloc, InsertPoint.before(first if space is Space.SHARED else op))
    op.buffer.replace_all_uses_with(alloc.buffer)
    Rewriter.erase_op(op)


def _make_dynamic(kernel: KernelOp) -> None:
    for op in [inner for inner in kernel.body.block.ops if isinstance(inner, AllocOp)]:
        type = op.buffer_type
        if type.memory_space == SpaceAttr(Space.SHARED):
            new = AllocOp(type, dynamic=True, aligned=op.alignment)
            new.location = op.location
            new.buffer.name_hint = op.buffer.name_hint
            Rewriter.replace_op(op, new)
