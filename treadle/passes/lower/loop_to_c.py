"""loop-to-c: each kernel becomes a function of its buffers and of the worker that runs it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import AgainBufferOp, AllocOp, BarrierOp, FuncOp
from treadle.errors import TreadleError
from treadle.passes.lower.first_blocks import computation_of, first_blocks
from treadle.passes.lower.identifiers import rename_kernels

index = IndexType()


@dataclass(frozen=True)
class LoopToCPass(ModulePass):
    """Distributes a kernel's blocks among the workers of a pool in contiguous chunks, which each worker runs in order.

    ```mlir
    loop.func @scale(%A: memref<64xf32>, %C: memref<64xf32>) grid(%b in 8) threads(%t in 1) comment "Mul" { ... }
    ```
    becomes
    ```mlir
    func.func @scale(%A: memref<64xf32>, %C: memref<64xf32>, %worker: index, %workers: index)
        attributes {comment = "Mul", grid = 8 : i64} {
      %0 = arith.muli %c8, %worker : index
      %first = arith.divui %0, %workers : index
      ...
      scf.for %b = %first to %last step %c1 { ... }
      func.return
    }
    ```
    Buffers become `memref.alloca`, whatever their space; barriers vanish, since a block has one thread. Where a block
    does nothing unless its number is less than some value, as `loop-trim` writes it, only those blocks are distributed:
    else one worker would have most of the work.
    Raises TreadleError for a kernel of several threads a block.
    """

    name = "loop-to-c"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rename_kernels(op)
        for kernel in [inner for inner in op.ops if isinstance(inner, FuncOp)]:
            _lower_kernel(kernel)


def _lower_kernel(kernel: FuncOp) -> None:
    name = kernel.sym_name.data
    threads = kernel.threads.value.data
    if threads != 1:
        raise TreadleError(f"kernel of {threads} threads a block", f"@{name}", "threads(%t in 1) on the cpu")
    for op in list(kernel.body.walk()):
        if isinstance(op, AllocOp):
            _lower_alloc(op)
        elif isinstance(op, AgainBufferOp):
            Rewriter.replace_op(op, AgainBufferOp(op.buffer))  # of a buffer that has another type now
        elif isinstance(op, BarrierOp):
            Rewriter.erase_op(op)
    types = [buffer.type for buffer in kernel.buffers]
    block = Block(arg_types=[*types, index, index])
    for new, old in zip(block.args, kernel.buffers, strict=False):
        new.name_hint = old.name_hint
    _fill(block, kernel)
    function = func.FuncOp(name, ([*types, index, index], []), Region(block))
    function.attributes["grid"] = kernel.grid
    if kernel.comment is not None:
        function.attributes["comment"] = kernel.comment
    if kernel.operations is not None:
        function.attributes["operations"] = kernel.operations
    function.location = kernel.location
    Rewriter.replace_op(kernel, function)


def _fill(block: Block, kernel: FuncOp) -> None:
    """Moves the kernel's body into a loop over the worker's blocks."""
    *buffers, worker, workers = block.args
    worker.name_hint, workers.name_hint = "worker", "workers"
    grid = kernel.grid.value.data
    zero, one, most = (arith.ConstantOp(IntegerAttr(n, index)) for n in (0, 1, grid))
    counting, blocks = _needed_blocks(kernel, most.result, zero.result, dict(zip(kernel.buffers, buffers, strict=True)))
    start = arith.MuliOp(blocks, worker)
    first = arith.DivUIOp(start, workers)
    following = arith.AddiOp(worker, one)
    end = arith.MuliOp(blocks, following)
    last = arith.DivUIOp(end, workers)
    first.result.name_hint, last.result.name_hint = "first", "last"
    loop = scf.ForOp(first, last, one, [], Block([scf.YieldOp()], arg_types=[index]))
    counter = loop.body.block.args[0]
    counter.name_hint = kernel.block_id.name_hint or "b"
    added: list[Operation] = [
        zero, one, most, *counting, start, first, following, end, last, loop, func.ReturnOp()
    ]  # fmt: skip
    for op in added:
        op.location = kernel.location
    block.add_ops(added)
    arguments: list[SSAValue[Attribute]] = [*buffers, counter, zero.result]
    assert loop.body.block.last_op is not None
    Rewriter.inline_block(kernel.body.block, InsertPoint.before(loop.body.block.last_op), arguments)


def _needed_blocks(
    kernel: FuncOp, most: SSAValue, zero: SSAValue, buffers: dict[SSAValue, SSAValue]
) -> tuple[list[Operation], SSAValue]:
    """How many blocks a call needs, and the operations that compute that before them, of the function's buffers."""
    operations, blocks, values = list[Operation](), most, dict[SSAValue, SSAValue](buffers)
    for limit in first_blocks(kernel):
        for op in computation_of(limit, kernel) or ():
            if any(result not in values for result in op.results):
                operations.append(op.clone(values))
        least = arith.MinSIOp(blocks, values[limit])
        operations.append(least)
        blocks = least.result
    if operations:
        needed = arith.MaxSIOp(blocks, zero)
        operations.append(needed)
        blocks = needed.result
        blocks.name_hint = "blocks"
    return operations, blocks


def _lower_alloc(op: AllocOp) -> None:
    type = op.buffer.type
    assert isinstance(type, MemRefType)
    plain = MemRefType(type.element_type, type.shape, type.layout)
    alloca = memref.AllocaOp.get(type.element_type, shape=type.get_shape(), layout=type.layout)
    assert alloca.memref.type == plain
    alloca.memref.name_hint = op.buffer.name_hint
    alloca.location = op.location
    Rewriter.replace_op(op, alloca)
