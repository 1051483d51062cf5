"""Buffers of a kernel: load, store, alloc, barrier, prefetch, and values that the C compiler is not to recognise."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, MemRefType, NoneAttr, i1
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent, OrdersMemory, SameBuffer
from treadle.dialects.loop.attributes import Space, SpaceAttr, swizzle_of
from treadle.dialects.syntax import MEMREF, Clause, ElementType

index = IndexType()


def checked_buffer(value: SSAValue, count: int) -> MemRefType:
    """The type of a buffer that is indexed by `count` numbers; VerifyException for another rank."""
    if not isinstance(value.type, MemRefType):
        raise VerifyException(f"expected a memref, got {value.type}")
    if value.type.get_num_dims() != count:
        raise VerifyException(f"{count} indices into {value.type}: expected {value.type.get_num_dims()}")
    return value.type


@irdl_op_definition
class LoadOp(IRDLOperation):
    """One element of a buffer. With `where`, memory is touched only if the predicate holds.

    ```mlir
    %a = loop.load %A[%i, %k] : memref<64x8xf32>
    %b = loop.load %A[%i, %k] where %inside else %zero : memref<64x8xf32>
    ```
    The attribute `unproved`, before the type, gives the reason why an index cannot be proved to be inside the buffer
    (`loop-prove-bounds`): `loop.load %A[%i] {unproved = "the caller's table"} : memref<64xf32>`.
    Templates read a kernel's arguments by this operation only; that makes the fusion of a prologue a rewrite of loads.
    Rejected: a number of indices that is not the buffer's rank, an `else` value of another type.
    """

    name = "loop.load"
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    predicate = opt_operand_def(i1)
    otherwise = opt_operand_def()
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())
    custom_directives = (Clause, ElementType)
    assembly_format = (
        "$buffer `[` $indices `]` custom<Clause>(`where`, $predicate) custom<Clause>(`else`, $otherwise) attr-dict `:` "
        "type($buffer) custom<ElementType>(ref(type($buffer)), type($result)) "
        "custom<ElementType>(ref(type($buffer)), type($otherwise))"
    )

    def __init__(
        self,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        predicate: SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ):
        type = checked_buffer(buffer, len(indices))
        super().__init__(operands=[buffer, indices, predicate, otherwise], result_types=[type.get_element_type()])

    def verify_(self) -> None:
        element = checked_buffer(self.buffer, len(self.indices)).get_element_type()
        if self.result.type != element:
            raise VerifyException(f"an element of {self.buffer.type} is not {self.result.type}")
        if (self.predicate is None) != (self.otherwise is None):
            raise VerifyException("'where' and 'else' come together")
        if self.otherwise is not None and self.otherwise.type != element:
            raise VerifyException(f"'else' gives {self.otherwise.type}: expected {element}")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Writes one element of a buffer, with `where` only if the predicate holds.

    ```mlir
    loop.store %v, %C[%i, %j] where %inside : memref<64x64xf32>
    ```
    Templates write a kernel's result by this operation only, each element once; that makes the fusion of an epilogue
    a rewrite of stores. Rejected: as for `loop.load`.
    """

    name = "loop.store"
    value = operand_def()
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    predicate = opt_operand_def(i1)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryWriteEffect())
    custom_directives = (Clause, ElementType)
    assembly_format = (
        "$value `,` $buffer `[` $indices `]` custom<Clause>(`where`, $predicate) attr-dict `:` type($buffer) "
        "custom<ElementType>(ref(type($buffer)), type($value))"
    )

    def __init__(
        self,
        value: SSAValue,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        predicate: SSAValue | None = None,
    ):
        super().__init__(operands=[value, buffer, indices, predicate])

    def verify_(self) -> None:
        element = checked_buffer(self.buffer, len(self.indices)).get_element_type()
        if self.value.type != element:
            raise VerifyException(f"{self.value.type} is no element of {self.buffer.type}")


@irdl_op_definition
class AllocOp(IRDLOperation):
    """A buffer of the kernel: private to each thread (`register`), shared by the block (`shared`), or one of the
    launch, which all of its blocks share (`device`, `zeroed`).

    ```mlir
    %acc = loop.alloc : memref<8x32xf32, #loop.space<register>>
    ```
    Its contents are undefined until stored; but those of a `zeroed` buffer are 0, and are 0 again when the kernel
    ends. `memory-plan` makes buffers of the launch arguments. Rejected: a type without a space, symbolic extents, a
    swizzle that does not fit the rows.
    """

    name = "loop.alloc"
    buffer = result_def(MemRefType)
    traits = traits_def(MemoryAllocEffect())
    assembly_format = "attr-dict `:` type($buffer)"

    def __init__(self, type: MemRefType):
        super().__init__(result_types=[type])

    def verify_(self) -> None:
        type = self.buffer.type
        assert isinstance(type, MemRefType)
        if not isinstance(type.memory_space, SpaceAttr):
            raise VerifyException(f"{type} has no space: expected #loop.space<{' | '.join(Space)}>")
        if DYNAMIC_INDEX in type.get_shape():
            raise VerifyException(f"{type}: a buffer of a kernel has static extents")
        swizzle = swizzle_of(type)
        if swizzle is not None and type.get_num_dims() < 2:
            raise VerifyException(f"{type} has no rows: a swizzle permutes the last of two or more dimensions")
        if swizzle is not None and (problem := swizzle.problem(type.get_shape()[-1])) is not None:
            raise VerifyException(problem)


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """All threads of a block wait for one another; what they stored in shared buffers is visible afterwards.

    ```mlir
    loop.barrier
    ```
    """

    name = "loop.barrier"
    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"


# Indices and buffers that the compiler of the printed text does not recognise.


@irdl_op_definition
class OpaqueOp(IRDLOperation):
    """The same index, as one that the C compiler knows nothing of: what is loaded there is loaded again.

    ```mlir
    %later = loop.opaque %at
    ```
    Two loads at equal indices without a store between them become one, whose value stays in a register or on the stack
    until its last use. Where the second load costs less than that, its index goes through this operation.
    """

    name = "loop.opaque"
    index = operand_def(IndexType())
    result = result_def(IndexType())
    traits = traits_def(Pure())
    assembly_format = "$index attr-dict"

    def __init__(self, index: SSAValue):
        super().__init__(operands=[index], result_types=[IndexType()])


@irdl_op_definition
class OpaqueBufferOp(IRDLOperation):
    """The same buffer as one of one dimension, at an address that the C compiler knows nothing of.

    ```mlir
    %again = loop.opaque_buffer %tiles : memref<4x8xf32> -> memref<32xf32>
    ```
    Of a large buffer of the kernel's own the compiler knows that it lies at a constant distance from the thread's
    pointer; GCC 12 then takes registers for addresses that tiles of sums have no register for.

    Rejected: a result that is not the buffer's elements in row-major order.
    """

    name = "loop.opaque_buffer"
    buffer = operand_def(MEMREF)
    result = result_def(MemRefType)
    traits = traits_def(Pure(), SameBuffer())
    assembly_format = "$buffer `:` type($buffer) `->` type($result) attr-dict"

    def __init__(self, buffer: SSAValue):
        super().__init__(operands=[buffer], result_types=[_flat_type(buffer)])

    def verify_(self) -> None:
        if self.result.type != _flat_type(self.buffer):
            raise VerifyException(f"a result {self.result.type}: expected {_flat_type(self.buffer)}")


def _flat_type(buffer: SSAValue) -> MemRefType:
    """Of the buffer's elements, in one dimension; VerifyException where they lie in another order."""
    type = buffer.type
    assert isinstance(type, MemRefType)
    if not isinstance(type.layout, NoneAttr) or DYNAMIC_INDEX in type.get_shape():
        raise VerifyException(f"a buffer {type}: expected static extents, in row-major order")
    return MemRefType(type.get_element_type(), (prod(type.get_shape()),), memory_space=type.memory_space)


# Asking for memory before it is read.


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """Has the cache line of an element fetched, which is so many elements behind the buffer's first one.

    ```mlir
    loop.prefetch %B at %offset : memref<3072x48xf32>
    ```
    It changes no result. The element may lie outside of the buffer, in front of it or behind: nothing is read there.
    """

    name = "loop.prefetch"
    buffer = operand_def(MEMREF)
    offset = operand_def(IndexType())
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$buffer `at` $offset attr-dict `:` type($buffer)"

    def __init__(self, buffer: SSAValue, offset: SSAValue):
        super().__init__(operands=[buffer, offset])
