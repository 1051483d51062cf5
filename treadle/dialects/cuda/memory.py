"""Buffers, barriers and asynchronous copies of the `cuda` dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, UnitAttr, i1, i32, i64
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.cuda.attributes import (
    AnyMemRef,
    Space,
    buffer_bytes,
    element_bytes,
    is_global,
    row_misalignment,
    space_of,
)
from treadle.dialects.effects import Convergent, CopyEffect, OrdersMemory

ALIGNMENT = 16
"""Of buffers, in bytes, unless they say more."""
CP_ASYNC_BYTES: tuple[int, ...] = (4, 8, 16)


@irdl_op_definition
class AllocOp(IRDLOperation):
    """
    A buffer in shared memory, or one that is private to a thread. It lives until the kernel ends; its
    contents are undefined at first. It starts at a multiple of 16 bytes, or of those that `aligned` says.

    Static shared buffers are declared by the kernel. Those marked `dynamic` share the launch's dynamic shared
    memory, one after the other in the order of the text: only they may exceed 48 KiB.

    ```mlir
    %tile = cuda.alloc : memref<2x16x132xf32, #cuda.space<shared>>
    %big = cuda.alloc dynamic : memref<4x128x40xf16, #cuda.space<shared>>
    %box = cuda.alloc dynamic aligned 1024 : memref<4x128x64xf16, #cuda.space<shared>>
    %sums = cuda.alloc : memref<8x8xf32, #cuda.space<local>>
    ```

    Rejected: a memref of another space or of none; an extent or a stride that is not static; an element type
    without a size; `dynamic` in local memory; an alignment that is no power of two from 16 on, or in local memory. The
    kernel checks how much shared memory there is.
    """

    name = "cuda.alloc"

    dynamic = opt_prop_def(UnitAttr)
    aligned = opt_prop_def(IntegerAttr.constr(i64))
    buffer = result_def(MemRefType.constr())

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "(`dynamic` $dynamic^)? (`aligned` $aligned^)? attr-dict `:` type($buffer)"

    traits = traits_def(MemoryAllocEffect())

    def __init__(self, buffer_type: AnyMemRef, *, dynamic: bool = False, aligned: int = ALIGNMENT) -> None:
        properties = {
            "dynamic": UnitAttr() if dynamic else None,
            "aligned": IntegerAttr(aligned, i64) if aligned != ALIGNMENT else None,
        }
        super().__init__(properties=properties, result_types=[buffer_type])

    @property
    def alignment(self) -> int:
        """Bytes of which the buffer's address is a multiple."""
        return ALIGNMENT if self.aligned is None else self.aligned.value.data

    @property
    def buffer_type(self) -> AnyMemRef:
        """The type of the buffer."""
        return cast(AnyMemRef, self.buffer.type)

    def verify_(self) -> None:
        space = space_of(self.buffer_type)
        if space is None:
            raise VerifyException(f"'{self.buffer_type}' is neither #cuda.space<shared> nor #cuda.space<local>")
        if not buffer_bytes(self.buffer_type):
            raise VerifyException(f"'{self.buffer_type}' has no static size")
        if self.dynamic is not None and space is not Space.SHARED:
            raise VerifyException("only shared memory can be dynamic")
        if self.alignment < ALIGNMENT or self.alignment.bit_count() != 1:
            raise VerifyException(f"aligned to {self.alignment} bytes, expected a power of two from {ALIGNMENT} on")
        if self.aligned is not None and space is not Space.SHARED:
            raise VerifyException("only shared memory is aligned to more than 16 bytes")


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """
    Waits until every thread of the block has arrived; their earlier accesses to memory are then visible to all of them.

    ```mlir
    cuda.barrier
    ```

    Every thread of the block must reach it. That is not verified: passes that insert it must keep it out of control
    flow that depends on the thread.
    """

    name = "cuda.barrier"

    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"


@irdl_op_definition
class ArriveOp(IRDLOperation):
    """
    One thread counts its block at a counter in global memory; true if it is the last of `blocks` blocks.

    It is a release and an acquire: writes that are visible to the thread before it, also through a barrier of its
    block, are visible to the last block's thread after it, and after a barrier to that thread's block. The last one
    resets the counter to 0.

    ```mlir
    %last = cuda.arrive %counters[%tile] of 4 : memref<16xi32>
    ```

    Rejected: a counter that is no i32 in global memory; a wrong number of indices; less than one block.
    """

    name = "cuda.arrive"

    counters = operand_def(MemRefType.constr())
    indices = var_operand_def(IndexType())
    blocks = prop_def(IntegerAttr.constr(i64))
    last = result_def(i1)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect(), OrdersMemory())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$counters `[` $indices `]` `of` $blocks attr-dict `:` type($counters)"

    def __init__(self, counters: SSAValue | Operation, indices: Sequence[SSAValue | Operation], blocks: int) -> None:
        super().__init__(
            operands=[counters, indices], properties={"blocks": IntegerAttr(blocks, i64)}, result_types=[i1]
        )

    def verify_(self) -> None:
        counters = cast(AnyMemRef, self.counters.type)
        if not is_global(counters) or counters.element_type != i32:
            raise VerifyException(f"counters in '{counters}', expected i32 in global memory")
        if len(self.indices) != counters.get_num_dims():
            raise VerifyException(f"'{counters}' needs {counters.get_num_dims()} indices, got {len(self.indices)}")
        if self.blocks.value.data < 1:
            raise VerifyException(f"the last of {self.blocks.value.data} blocks, expected at least one")


@irdl_op_definition
class CpAsyncOp(IRDLOperation):
    """
    Starts a copy of 4, 8 or 16 bytes from global to shared memory, without passing through registers.

    It is complete for this thread after a `cuda.cp_async_wait` that covers its group, and for the block after a barrier
    that follows. Where the predicate is false nothing is read, and zeros are written.

    ```mlir
    cuda.cp_async %a[%i, %k], %tile[%r, %c] bytes 16 where %inside
      : memref<128x768xf32>, memref<16x128xf32, #cuda.space<shared>>
    ```

    Rejected: another number of bytes, or not a whole number of elements; a source that is not in global or
    a destination that is not in shared memory; different element types; a wrong number of indices; rows
    that cannot all be aligned to the number of bytes.
    """

    name = "cuda.cp_async"

    source = operand_def(MemRefType.constr())
    source_indices = var_operand_def(IndexType())
    destination = operand_def(MemRefType.constr())
    destination_indices = var_operand_def(IndexType())
    predicate = opt_operand_def(i1)
    bytes = prop_def(IntegerAttr.constr(i64))

    traits = traits_def(CopyEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$source `[` $source_indices `]` `,` $destination `[` $destination_indices `]` `bytes` $bytes"
        " (`where` $predicate^)? attr-dict `:` type($source) `,` type($destination)"
    )

    def __init__(
        self,
        source: SSAValue | Operation,
        source_indices: Sequence[SSAValue | Operation],
        destination: SSAValue | Operation,
        destination_indices: Sequence[SSAValue | Operation],
        num_bytes: int,
        predicate: SSAValue | Operation | None = None,
    ) -> None:
        super().__init__(
            operands=[
                source,
                source_indices,
                destination,
                destination_indices,
                [] if predicate is None else [predicate],
            ],
            properties={"bytes": IntegerAttr(num_bytes, i64)},
        )

    def verify_(self) -> None:
        source, destination = cast(AnyMemRef, self.source.type), cast(AnyMemRef, self.destination.type)
        num_bytes = cast(IntegerAttr[Any], self.bytes).value.data
        if num_bytes not in CP_ASYNC_BYTES:
            raise VerifyException(f"cannot copy {num_bytes} bytes, only one of {CP_ASYNC_BYTES}")
        if not is_global(source):
            raise VerifyException(f"source '{source}' is not in global memory")
        if space_of(destination) is not Space.SHARED:
            raise VerifyException(f"destination '{destination}' is not #cuda.space<shared>")
        if source.element_type != destination.element_type:
            raise VerifyException(f"cannot copy {source.element_type} to {destination.element_type}")
        size = element_bytes(source.element_type)
        if size is None or num_bytes % size:
            raise VerifyException(f"{num_bytes} bytes are no whole number of {source.element_type}")
        for what, buffer, indices in (
            ("source", source, self.source_indices),
            ("destination", destination, self.destination_indices),
        ):
            if len(indices) != buffer.get_num_dims():
                raise VerifyException(f"{what} '{buffer}' needs {buffer.get_num_dims()} indices, got {len(indices)}")
            if (reason := row_misalignment(buffer, num_bytes)) is not None:
                raise VerifyException(f"{what}: {reason}")


@irdl_op_definition
class CpAsyncCommitOp(IRDLOperation):
    """
    Ends a group: all copies that this thread started since the last commit belong to it. It may be empty.

    ```mlir
    cuda.cp_async_commit
    ```
    """

    name = "cuda.cp_async_commit"

    traits = traits_def(OrdersMemory())
    assembly_format = "attr-dict"


@irdl_op_definition
class CpAsyncWaitOp(IRDLOperation):
    """
    Waits until at most `pending` of this thread's newest groups are still under way.

    ```mlir
    cuda.cp_async_wait 2
    ```

    Rejected: a negative number.
    """

    name = "cuda.cp_async_wait"

    traits = traits_def(OrdersMemory())
    pending = prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$pending attr-dict"

    def __init__(self, pending: int) -> None:
        super().__init__(properties={"pending": IntegerAttr(pending, i64)})

    def verify_(self) -> None:
        pending = cast(IntegerAttr[Any], self.pending).value.data
        if pending < 0:
            raise VerifyException(f"cannot leave {pending} groups under way, expected 0 or more")
