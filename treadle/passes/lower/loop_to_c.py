"""loop-to-c: each kernel becomes a function of its buffers and of the worker that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.effects import buffers_written, is_allocation, is_load, is_pure
from treadle.dialects.graph.control import ControlOp
from treadle.dialects.loop import (
    AllocOp,
    BarrierOp,
    DispatchOp,
    FuncOp,
    KernelOp,
    LoadOp,
    OpaqueBufferOp,
    StoreOp,
    memref_of,
)
from treadle.errors import TreadleError
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.passes.lower.identifiers import rename_kernels

# How many of a kernel's blocks do something in a call, where only the first ones do.


def first_blocks(kernel: FuncOp) -> Sequence[SSAValue]:
    """Values of which each is at most the number of the first block, and of all later ones, that does nothing.

    A block does nothing where the branch that it consists of, but for arithmetic, reads and buffers, is not taken:
    where `number of the block < value` does not hold, which is all or a part of what is tested.
    """
    block = kernel.body.block
    rest = [op for op in block.ops if not (is_pure(op) or is_load(op) or is_allocation(op))]
    if len(rest) != 1 or not isinstance(branch := rest[0], scf.IfOp) or branch.results:
        return []
    if any(inner.first_op is not inner.last_op for inner in branch.false_region.blocks):
        return []
    return [test.rhs for test in _conjunction(branch.cond) if _is_on_block(test, kernel)]


def computation_of(value: SSAValue, kernel: FuncOp) -> Sequence[Operation] | None:
    """The operations that compute a value before any block runs, in order; None where it depends on the block, or on
    what blocks store."""
    written = {buffer for op in kernel.body.block.ops for buffer in buffers_written(op)}
    found: dict[Operation, None] = {}
    waiting = [value]
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, Block):
            return None
        if owner in found:
            continue
        if owner.parent is not kernel.body.block or not (is_pure(owner) or is_load(owner)):
            return None
        found[owner] = None
        for operand in owner.operands:
            if operand in written or operand in (kernel.block_id, kernel.thread_id):
                return None
            if operand not in kernel.buffers:
                waiting.append(operand)
    return [op for op in kernel.body.block.ops if op in found]


def _conjunction(condition: SSAValue) -> Iterator[arith.CmpiOp]:
    op = condition.owner
    if isinstance(op, arith.AndIOp):
        yield from _conjunction(op.lhs)
        yield from _conjunction(op.rhs)
    elif isinstance(op, arith.CmpiOp):
        yield op


def _is_on_block(test: arith.CmpiOp, kernel: FuncOp) -> bool:
    is_less = arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] in ("slt", "ult")
    return is_less and test.lhs is kernel.block_id and computation_of(test.rhs, kernel) is not None


# Kernels that copy a tensor, for returned values that are not the result of a kernel of their own.

ELEMENTS_PER_BLOCK = 4096
"""Elements that one block copies: enough for a thread of the pool, few enough to distribute a large copy."""

index = IndexType()


def copy_returned_values(end: ReturnOp, threads: int) -> None:
    """Makes each returned value the result of a kernel of its own, by copying those that are not.

    A kernel's result, or a loop's or a branch's, may be returned once as it is. Arguments, constants, and
    what was returned before are copied.
    """
    returned: set[SSAValue] = set()
    for n, value in enumerate(list(end.operands)):
        if value not in returned and isinstance(value.owner, KernelOp | DispatchOp | ControlOp):
            returned.add(value)
            continue
        copy = copy_kernel(value, f"copy_{n}", threads)
        Rewriter.insert_op(copy, InsertPoint.before(end))
        end.operands[n] = copy.results[0]


def copy_kernel(value: SSAValue, name: str, threads: int) -> KernelOp:
    """A kernel whose result is a copy of the static tensor `value`.

    A block copies ELEMENTS_PER_BLOCK consecutive elements; consecutive threads copy consecutive ones.
    """
    type = value.type
    assert isinstance(type, TensorType)
    buffer = memref_of(type)
    count = prod(type.get_shape())
    threads = max(1, min(threads, count))
    grid = max(1, -(-count // ELEMENTS_PER_BLOCK))
    body = Block(arg_types=[buffer, buffer, index, index])
    for arg, hint in zip(body.args, ("x", "y", "b", "t"), strict=True):
        arg.name_hint = hint
    _emit_copy(body, type, count, grid, threads)
    kernel = KernelOp(name, [value], [type], grid, threads, Region(body), comment="copies a tensor")
    kernel.results[0].name_hint = value.name_hint
    return kernel


def _emit_copy(body: Block, type: TensorType[Attribute], count: int, grid: int, threads: int) -> None:
    emitter = IndexEmitter(InsertPoint.at_end(body))
    first = _numbered(body.args[2], grid) * ELEMENTS_PER_BLOCK
    lower = emitter.emit(first + _numbered(body.args[3], threads))
    step = emitter.emit(threads)
    upper = emitter.emit(first + ELEMENTS_PER_BLOCK if grid > 1 else count)
    if grid > 1 and count % ELEMENTS_PER_BLOCK:
        upper = _minimum(body, upper, emitter.emit(count))
    inside = Block(arg_types=[index])
    inside.args[0].name_hint = "e"
    loop = scf.ForOp(lower, upper, step, [], inside)
    body.add_op(loop)
    element = var(inside.args[0], 0, max(count, 1) - 1)
    inner = IndexEmitter(InsertPoint.before(loop)).inside(InsertPoint.at_end(inside))
    position = [inner.emit(i) for i in _delinearized(element, type.get_shape())]
    load = LoadOp(body.args[0], position)
    load.result.name_hint = "v"
    inside.add_ops([load, StoreOp(load.result, body.args[1], position), scf.YieldOp()])


def _numbered(arg: SSAValue, extent: int) -> Expr:
    return const(0) if extent == 1 else var(arg, 0, extent - 1)


def _delinearized(element: Expr, shape: tuple[int, ...]) -> list[Expr]:
    """The index of the `element`-th element of a row-major tensor; of an empty one, any index."""
    shape = tuple(max(extent, 1) for extent in shape)
    strides = [prod(shape[n + 1 :]) for n in range(len(shape))]
    return [mod(floordiv(element, stride), extent) for stride, extent in zip(strides, shape, strict=True)]


def _minimum(body: Block, a: SSAValue, b: SSAValue) -> SSAValue:
    less = arith.CmpiOp(a, b, "slt")
    smaller = arith.SelectOp(less.result, a, b)
    body.add_ops([less, smaller])
    return smaller.result


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
    does nothing unless its number is less than some value, as `loop-skip-padding` writes it, only those blocks are
    distributed: else one worker would have most of the work. Raises TreadleError for a kernel of several threads a
    block.
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
        elif isinstance(op, OpaqueBufferOp):
            Rewriter.replace_op(op, OpaqueBufferOp(op.buffer))  # of a buffer that has another type now
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
