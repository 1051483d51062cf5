"""Copies into a block's shared buffers, and waits for those that are asynchronous."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, UnitAttr, i1, i64
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import (
    HasParent,
    IsTerminator,
    MemoryWriteEffect,
    Pure,
    RecursiveMemoryEffect,
)
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import CopyEffect, OrdersMemory
from treadle.dialects.loop.access import checked_buffer
from treadle.dialects.loop.attributes import Space, SpaceAttr
from treadle.dialects.syntax import MEMREF, Body, Clause, IndexRange
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges

index = IndexType()


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """Gives the value of one element of a `loop.copy`.

    ```mlir
    loop.yield %v : f16
    ```
    Rejected: a parent other than `loop.copy`.
    """

    name = "loop.yield"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(CopyOp), Pure()))


def _is_shared(type: MemRefType) -> bool:
    return type.memory_space == SpaceAttr(Space.SHARED)


@irdl_op_definition
class CopyOp(IRDLOperation, HasIndexRanges):
    """The calling thread writes the region's values to `extent` consecutive elements of a shared buffer's row.

    ```mlir
    loop.copy async (%e in 8) to %tile[%stage, %i, %k] {
      %column = arith.addi %first, %e : index
      %v = loop.load %A[%row, %column] where %inside else %zero : memref<128x768xf16>
      loop.yield %v : f16
    } : memref<3x128x32xf16, #loop.space<shared>>
    ```
    Element `e` goes to the last index plus `e`. A synchronous copy is complete when the operation is. One marked
    `async` may be incomplete until a `loop.wait` that covers its group, and is visible to other threads after a barrier
    that follows; `loop-lower-copies` chooses its instructions. The region loads like any other code of a kernel, so
    that a prologue is fused into the copy: one that only moves data changes address and predicate. Rejected: a
    destination that is not shared, an extent below 1, a value of another type.
    """

    name = "loop.copy"
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    extent = prop_def(IntegerAttr.constr(i64))
    is_async = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect(), MemoryWriteEffect())
    custom_directives = (Body, IndexRange)
    assembly_format = (
        "(`async` $is_async^)? ` ` `(` custom<IndexRange>(`element`, $extent, ref($body)) `)` `to` $buffer `[` "
        "$indices `]` custom<Body>($body) attr-dict `:` type($buffer)"
    )

    def __init__(
        self,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        extent: int,
        body: Region | None = None,
        *,
        is_async: bool = False,
    ):
        """Without a body, makes a block whose argument is the element's number, to be filled."""
        super().__init__(
            operands=[buffer, indices],
            properties={"extent": IntegerAttr(extent, i64), "is_async": UnitAttr() if is_async else None},
            regions=[Region(Block(arg_types=[index])) if body is None else body],
        )

    @property
    def count(self) -> int:
        """The number of elements."""
        return self.extent.value.data

    @property
    def element(self) -> BlockArgument:
        """The element's number inside the region."""
        return self.body.block.args[0]

    def index_range(self, value: SSAValue) -> Range | None:
        return (0, self.count - 1) if value is self.element else None

    @property
    def value(self) -> SSAValue:
        """What the region yields."""
        end = self.body.block.last_op
        assert isinstance(end, YieldOp), "verified"
        return end.arguments[0]

    def verify_(self) -> None:
        type = checked_buffer(self.buffer, len(self.indices))
        if not _is_shared(type):
            raise VerifyException(f"a copy to {type}: expected a buffer in #loop.space<shared>")
        if self.count < 1:
            raise VerifyException(f"a copy of {self.count} elements: expected at least 1")
        end = self.body.block.last_op
        given = [value.type for value in end.arguments] if isinstance(end, YieldOp) else []
        if given != [type.get_element_type()]:
            said = ", ".join(map(str, given)) or "nothing"
            raise VerifyException(f"the region yields {said}: expected {type.get_element_type()}")


@irdl_op_definition
class AsyncCopyOp(IRDLOperation):
    """Starts a copy of consecutive elements of a global buffer to consecutive elements of a shared buffer's row.

    ```mlir
    loop.async_copy 8 %A[%at], %tile[%stage, %i, %k] where %inside
        : memref<98304xf16>, memref<3x128x32xf16, #loop.space<shared>>
    ```
    Where the predicate is false nothing is read, and zeros are written. `loop-lower-copies` turns a `loop.copy async`
    that only moves aligned data into it; it is complete when that would be. Rejected: a source that is not global, a
    destination that is not shared, different element types, fewer than one element.
    """

    name = "loop.async_copy"
    source = operand_def(MEMREF)
    source_indices = var_operand_def(IndexType)
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    predicate = opt_operand_def(i1)
    extent = prop_def(IntegerAttr.constr(i64))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(CopyEffect())
    custom_directives = (Clause,)
    assembly_format = (
        "$extent $source `[` $source_indices `]` `,` $buffer `[` $indices `]` custom<Clause>(`where`, $predicate) "
        "attr-dict `:` type($source) `,` type($buffer)"
    )

    def __init__(
        self,
        extent: int,
        source: SSAValue,
        source_indices: Sequence[SSAValue],
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        predicate: SSAValue | None = None,
    ):
        super().__init__(
            operands=[source, source_indices, buffer, indices, predicate],
            properties={"extent": IntegerAttr(extent, i64)},
        )

    @property
    def count(self) -> int:
        """The number of elements."""
        return self.extent.value.data

    def verify_(self) -> None:
        source = checked_buffer(self.source, len(self.source_indices))
        target = checked_buffer(self.buffer, len(self.indices))
        if isinstance(source.memory_space, SpaceAttr) or not _is_shared(target):
            raise VerifyException(f"a copy from {source} to {target}: expected global to #loop.space<shared>")
        if source.get_element_type() != target.get_element_type():
            raise VerifyException(f"a copy from {source} to {target}: the elements' types differ")
        if self.count < 1:
            raise VerifyException(f"a copy of {self.count} elements: expected at least 1")


@irdl_op_definition
class CommitOp(IRDLOperation):
    """Ends a group: the copies that this thread started since the last commit belong to it. It may be empty.

    ```mlir
    loop.commit
    ```
    """

    name = "loop.commit"
    traits = traits_def(OrdersMemory())
    assembly_format = "attr-dict"


@irdl_op_definition
class WaitOp(IRDLOperation):
    """Waits until at most `pending` of this thread's newest groups are under way.

    ```mlir
    loop.wait 1
    ```
    Rejected: a negative number.
    """

    name = "loop.wait"
    pending = prop_def(IntegerAttr.constr(i64))
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory())
    assembly_format = "$pending attr-dict"

    def __init__(self, pending: int):
        super().__init__(properties={"pending": IntegerAttr(pending, i64)})

    @property
    def groups(self) -> int:
        """How many groups may stay under way."""
        assert isinstance(self.pending, IntegerAttr)
        return self.pending.value.data

    def verify_(self) -> None:
        if self.groups < 0:
            raise VerifyException(f"cannot leave {self.groups} groups under way: expected 0 or more")
