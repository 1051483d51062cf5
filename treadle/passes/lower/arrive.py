"""The arrival of a block as that of one of its threads, between barriers."""

from __future__ import annotations

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects import cuda, loop
from treadle.dialects.graph.definition import DefinitionBuilder


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


__all__ = ["lower_arrive"]
