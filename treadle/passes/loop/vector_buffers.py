"""Register buffers that are accessed by whole vectors only become buffers of vectors."""

from __future__ import annotations

from xdsl.dialects import memref, vector
from xdsl.dialects.builtin import IndexType, MemRefType, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.loop import AllocOp, FuncOp, KernelOp
from treadle.index.algebra import alignment
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import floordiv
from treadle.index.reader import IndexReader

index = IndexType()


def hold_vectors(kernel: KernelOp | FuncOp, lanes: int) -> None:
    """Turns `memref<8x32xf32, register>` into `memref<8x2xvector<16xf32>, register>` where every access allows it."""
    reader = IndexReader()
    for op in [op for op in kernel.body.walk() if isinstance(op, AllocOp)]:
        if _only_whole_vectors(op, lanes, reader):
            _retype(op, lanes, reader)


def _only_whole_vectors(alloc: AllocOp, lanes: int, reader: IndexReader) -> bool:
    type = alloc.buffer.type
    assert isinstance(type, MemRefType)
    shape = type.get_shape()
    if not shape or shape[-1] % lanes:
        return False
    for use in alloc.buffer.uses:
        op = use.operation
        if not isinstance(op, vector.LoadOp | vector.StoreOp):
            return False
        value = op.result if isinstance(op, vector.LoadOp) else op.vector
        if value.type != VectorType(type.get_element_type(), [lanes]):
            return False
        position = reader.read(op.indices[-1])
        if position.as_int() != 0 and alignment(position) % lanes:
            return False
    return True


def _retype(alloc: AllocOp, lanes: int, reader: IndexReader) -> None:
    old = alloc.buffer.type
    assert isinstance(old, MemRefType)
    *outer, last = old.get_shape()
    element = VectorType(old.get_element_type(), [lanes])
    new = AllocOp(MemRefType(element, [*outer, last // lanes], memory_space=old.memory_space))
    new.location = alloc.location
    new.buffer.name_hint = alloc.buffer.name_hint
    Rewriter.insert_op(new, InsertPoint.before(alloc))
    for use in list(alloc.buffer.uses):
        op = use.operation
        assert isinstance(op, vector.LoadOp | vector.StoreOp)
        emitter = IndexEmitter(InsertPoint.before(op))
        indices: list[SSAValue] = [
            *op.indices[:-1],
            emitter.emit(floordiv(reader.read(op.indices[-1]), lanes)),
        ]
        access: Operation
        if isinstance(op, vector.LoadOp):
            access = memref.LoadOp.get(new.buffer, indices)
            access.results[0].name_hint = op.results[0].name_hint
        else:
            access = memref.StoreOp.get(op.vector, new.buffer, indices)
        access.location = op.location
        access.attributes |= op.attributes
        Rewriter.replace_op(op, access)
    Rewriter.erase_op(alloc)
