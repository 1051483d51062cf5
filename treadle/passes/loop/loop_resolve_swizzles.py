"""loop-resolve-swizzles: indices into swizzled buffers become permuted indices into row-major buffers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.hopper import TensorLoadOp, TensorStoreOp, WgmmaOp, WgmmaRegistersOp
from treadle.dialects.location import location_of
from treadle.dialects.loop import (
    AllocOp,
    AsyncCopyOp,
    LoadMatrixOp,
    LoadOp,
    StoreOp,
    Swizzle,
    swizzle_of,
    swizzle_of_rows,
)
from treadle.errors import TreadleError
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import Expr, var
from treadle.index.reader import IndexReader
from treadle.passes.loop.kernels import kernels_of
from treadle.target.tensor_map import SPANS

_ACCESSES = (LoadOp, StoreOp, vector.LoadOp, vector.StoreOp, AsyncCopyOp, LoadMatrixOp)
_OF_HARDWARE = (TensorLoadOp, TensorStoreOp, WgmmaOp, WgmmaRegistersOp)


@dataclass(frozen=True)
class LoopResolveSwizzlesPass(ModulePass):
    """Applies the permutation of swizzled buffers to the indices of their accesses, and makes the buffers row-major.

    ```mlir
    %tile = loop.alloc : memref<128x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
    %v = loop.load %tile[%i, %k] : memref<128x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
    ```
    becomes
    ```mlir
    %tile = loop.alloc : memref<128x32xf16, #loop.space<shared>>
    %chunk = arith.divui %k, %c8 : index
    %row = arith.divui %i, %c2 : index
    %phase = arith.remui %row, %c4 : index
    %permuted = arith.xori %chunk, %phase : index
    ... %column = %permuted * 8 + %k % 8
    %v = loop.load %tile[%i, %column] : memref<128x32xf16, #loop.space<shared>>
    ```
    An access of several elements stays inside one chunk, whose elements stay consecutive. It runs after the passes that
    analyse addresses, since they cannot see through an exclusive or. Copies of boxes and products of warpgroups permute
    by themselves. TreadleError for another use of such a buffer.
    """

    name = "loop-resolve-swizzles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in kernels_of(op):
            reader = IndexReader()
            for alloc in [inner for inner in kernel.body.walk() if isinstance(inner, AllocOp)]:
                type = alloc.buffer.type
                assert isinstance(type, MemRefType)
                swizzle = swizzle_of(type)
                if swizzle is not None:
                    _resolve(alloc, swizzle, reader)


def _resolve(alloc: AllocOp, swizzle: Swizzle, reader: IndexReader) -> None:
    old = alloc.buffer.type
    for use in list(alloc.buffer.uses):
        access = use.operation
        if isinstance(access, _OF_HARDWARE):
            _check_span(access, swizzle, old)
            continue
        if not isinstance(access, _ACCESSES):
            accepted = ", ".join(kind.name for kind in (*_ACCESSES, *_OF_HARDWARE))
            raise TreadleError(f"{access.name} uses a swizzled buffer", location_of(access), accepted)
        # The indices follow the buffer.
        last = use.index + old.get_num_dims()
        row, column = access.operands[last - 1], access.operands[last]
        access.operands[last] = _permuted(access, swizzle, reader.read(row), reader.read(column), column)
    plain = MemRefType(old.get_element_type(), old.get_shape(), memory_space=old.memory_space)
    Rewriter.replace_value_with_new_type(alloc.buffer, plain)


def _check_span(access: Operation, swizzle: Swizzle, type: MemRefType) -> None:
    """TreadleError unless the hardware's permutation of rows of this length is the buffer's."""
    size = byte_width(type.get_element_type())
    row = type.get_shape()[-1] * size
    if row not in SPANS or swizzle != swizzle_of_rows(row, size):
        accepted = f"swizzle_of_rows of rows of {', '.join(map(str, SPANS[1:]))} bytes"
        raise TreadleError(f"{access.name} of rows of {row} bytes with {swizzle}", location_of(access), accepted)


def _permuted(access: Operation, swizzle: Swizzle, row: Expr, column: Expr, known: SSAValue) -> SSAValue:
    """The permuted column of the element at (row, column); `known` is the expression of the column."""
    phase = row // swizzle.rows % swizzle.phases
    if phase == 0:
        return known
    emitter = IndexEmitter(InsertPoint.before(access), location=access.location)
    chunk = column // swizzle.chunk
    permuted = emitter.emit(phase)
    if chunk != 0:
        exclusive = arith.XOrIOp(emitter.emit(chunk), permuted)
        exclusive.location = access.location
        Rewriter.insert_op(exclusive, InsertPoint.before(access))
        permuted = exclusive.result
        return emitter.emit(var(permuted, 0, None) * swizzle.chunk + column % swizzle.chunk)
    return emitter.emit(phase * swizzle.chunk + column % swizzle.chunk)


__all__ = ["LoopResolveSwizzlesPass"]
