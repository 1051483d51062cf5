"""Barriers that count arrivals and bytes, barriers by number, and registers of a warpgroup."""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects.builtin import IndexType, IntegerAttr, UnitAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import NoMemoryEffect
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent, OrdersMemory
from treadle.dialects.hopper.attributes import check_mbarrier
from treadle.dialects.syntax import MEMREF
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges

MOST_ARRIVALS = (1 << 20) - 1
"""Of a phase; the same number of bytes. PTX ISA 9.0, "Phase of the mbarrier object"."""
WARP, WARPGROUP = 32, 128
LEAST_REGISTERS, MOST_REGISTERS = 24, 240
NAMED_BARRIERS = 16


def number_of(attribute: Any) -> int:
    """The number of an integer property."""
    return cast("IntegerAttr[Any]", attribute).value.data


@irdl_op_definition
class UniformOp(IRDLOperation, HasIndexRanges):
    """
    The value that a warp's first lane has, known to be the same in all lanes: what is computed from it takes uniform
    registers, and a branch on it is one of whole warps. It is less than a number.

    ```mlir
    %role = hopper.uniform %warpgroup in 3
    ```

    Rejected: a number below 1.
    """

    name = "hopper.uniform"

    value = operand_def(IndexType)
    extent = prop_def(IntegerAttr.constr(i64))
    result = result_def(IndexType)

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(NoMemoryEffect(), Convergent())
    assembly_format = "$value `in` $extent attr-dict"

    def __init__(self, value: SSAValue, extent: int):
        super().__init__(operands=[value], properties={"extent": IntegerAttr(extent, i64)}, result_types=[IndexType()])

    def index_range(self, value: SSAValue) -> Range | None:
        return (0, number_of(self.extent) - 1) if value is self.result else None

    def verify_(self) -> None:
        if number_of(self.extent) < 1:
            raise VerifyException(f"less than {number_of(self.extent)}, expected at least 1")


@irdl_op_definition
class MbarrierInitOp(IRDLOperation):
    """
    One thread makes a barrier whose phases end after so many arrivals, and all bytes that were expected.

    ```mlir
    hopper.mbarrier_init %full[%stage], 1 : memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```

    Other threads, and copies, may use it after `hopper.mbarrier_fence` and a barrier of the block. Rejected: what is
    no barrier in shared memory, less than one arrival, more than 1048575.
    """

    name = "hopper.mbarrier_init"

    barrier = operand_def(MEMREF)
    index = operand_def(IndexType)
    arrivals = prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory())
    assembly_format = "$barrier `[` $index `]` `,` $arrivals attr-dict `:` type($barrier)"

    def __init__(self, barrier: SSAValue, index: SSAValue, arrivals: int):
        super().__init__(operands=[barrier, index], properties={"arrivals": IntegerAttr(arrivals, i64)})

    def verify_(self) -> None:
        check_mbarrier(self.barrier)
        if not 1 <= number_of(self.arrivals) <= MOST_ARRIVALS:
            raise VerifyException(f"{number_of(self.arrivals)} arrivals, expected 1 to {MOST_ARRIVALS}")


@irdl_op_definition
class MbarrierFenceOp(IRDLOperation):
    """
    Publishes the barriers that the thread made to copies and, with a barrier of the block behind it, to other threads.

    ```mlir
    hopper.mbarrier_fence
    ```
    """

    name = "hopper.mbarrier_fence"

    traits = traits_def(OrdersMemory())
    assembly_format = "attr-dict"


@irdl_op_definition
class MbarrierArriveOp(IRDLOperation):
    """
    The calling thread arrives: what it did before is visible to those that wait for the phase. With bytes, the phase
    also waits until copies have brought so many.

    ```mlir
    hopper.mbarrier_arrive %empty[%stage] : memref<4x!hopper.mbarrier, #loop.space<shared>>
    hopper.mbarrier_arrive %full[%stage] expect 49152 : memref<4x!hopper.mbarrier, #loop.space<shared>>
    ```

    Rejected: what is no barrier in shared memory; bytes that are not positive, or more than 1048575.
    """

    name = "hopper.mbarrier_arrive"

    barrier = operand_def(MEMREF)
    index = operand_def(IndexType)
    bytes = opt_prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory())
    assembly_format = "$barrier `[` $index `]` (`expect` $bytes^)? attr-dict `:` type($barrier)"

    def __init__(self, barrier: SSAValue, index: SSAValue, bytes: int | None = None):
        properties = {"bytes": None if bytes is None else IntegerAttr(bytes, i64)}
        super().__init__(operands=[barrier, index], properties=properties)

    def verify_(self) -> None:
        check_mbarrier(self.barrier)
        if self.bytes is not None and not 1 <= number_of(self.bytes) <= MOST_ARRIVALS:
            raise VerifyException(f"{number_of(self.bytes)} bytes, expected 1 to {MOST_ARRIVALS}")


@irdl_op_definition
class MbarrierWaitOp(IRDLOperation):
    """
    Waits until the phase of this parity has ended: 0 for the first of a barrier, 1 for the second, and so on. A wait
    with parity 1 on a new barrier returns at once.

    ```mlir
    hopper.mbarrier_wait %full[%stage], %parity : memref<4x!hopper.mbarrier, #loop.space<shared>>
    hopper.mbarrier_wait cluster %summed[%zero], %parity : memref<1x!hopper.mbarrier, #loop.space<shared>>
    ```

    With `cluster`, what other blocks stored by `hopper.store_async` may be read, too. A waiter must not fall two phases
    behind. Rejected: what is no barrier in shared memory.
    """

    name = "hopper.mbarrier_wait"

    barrier = operand_def(MEMREF)
    index = operand_def(IndexType)
    parity = operand_def(IndexType)
    cluster = opt_prop_def(UnitAttr)

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory())
    assembly_format = "(`cluster` $cluster^)? $barrier `[` $index `]` `,` $parity attr-dict `:` type($barrier)"

    def __init__(self, barrier: SSAValue, index: SSAValue, parity: SSAValue, *, cluster: bool = False):
        properties = {"cluster": UnitAttr() if cluster else None}
        super().__init__(operands=[barrier, index, parity], properties=properties)

    def verify_(self) -> None:
        check_mbarrier(self.barrier)


@irdl_op_definition
class NamedBarrierOp(IRDLOperation):
    """
    Meets the other threads of a barrier by number, or only counts as having come.

    ```mlir
    hopper.named_barrier %number, 128
    hopper.named_barrier arrive %number, 256
    ```

    Number 0 is `cuda.barrier`'s. Rejected: threads that are no multiple of 32 from 32 to 1024.
    """

    name = "hopper.named_barrier"

    arrive = opt_prop_def(UnitAttr)
    number = operand_def(IndexType)
    threads = prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "(`arrive` $arrive^)? $number `,` $threads attr-dict"

    def __init__(self, number: SSAValue, threads: int, *, arrive: bool = False):
        properties = {"threads": IntegerAttr(threads, i64), "arrive": UnitAttr() if arrive else None}
        super().__init__(operands=[number], properties=properties)

    def verify_(self) -> None:
        threads = number_of(self.threads)
        if threads % WARP or not WARP <= threads <= 1024:
            raise VerifyException(f"{threads} threads, expected a multiple of {WARP} up to 1024")


@irdl_op_definition
class WarpBarrierOp(IRDLOperation):
    """
    Waits until all lanes of the warp have arrived; their earlier accesses to memory are then visible to all of them.

    ```mlir
    hopper.warp_barrier
    ```
    """

    name = "hopper.warp_barrier"

    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"


@irdl_op_definition
class RegistersOp(IRDLOperation):
    """
    The registers that each thread of the warpgroup has from here on. What one gives up, another may take.

    ```mlir
    hopper.registers decrease 40
    hopper.registers increase 232
    ```

    All warps of the warpgroup reach it. Rejected: a number that is no multiple of 8 from 24 to 240.
    """

    name = "hopper.registers"

    increase = opt_prop_def(UnitAttr)
    decrease = opt_prop_def(UnitAttr)
    count = prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "(`increase` $increase^)? (`decrease` $decrease^)? $count attr-dict"

    def __init__(self, count: int, *, increase: bool):
        given = "increase" if increase else "decrease"
        super().__init__(properties={given: UnitAttr(), "count": IntegerAttr(count, i64)})

    def verify_(self) -> None:
        count = number_of(self.count)
        if count % 8 or not LEAST_REGISTERS <= count <= MOST_REGISTERS:
            raise VerifyException(
                f"{count} registers, expected a multiple of 8 from {LEAST_REGISTERS} to {MOST_REGISTERS}"
            )
        if (self.increase is None) == (self.decrease is None):
            raise VerifyException("expected either increase or decrease")
