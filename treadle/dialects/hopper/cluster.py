"""Clusters: blocks that start together, and store to each other's shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, IntegerAttr, VectorType, f32, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import EffectInstance, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent, OrdersMemory
from treadle.dialects.hopper.attributes import check_mbarrier, check_shared, element_of
from treadle.dialects.syntax import MEMREF

MOST_BLOCKS = 8
"""Of a cluster, on every device of compute capability 9.0. CUDA C++ Programming Guide, "Thread Block Clusters"."""
STORED = 2
"""Numbers of 32 bits of a store."""
_KERNELS = ("loop.kernel", "loop.func", "cuda.kernel")


def check_cluster(blocks: Attribute | None, grid: int) -> None:
    """VerifyException for a number of blocks of a cluster that no device takes, or that does not divide the grid."""
    if blocks is None:
        return
    if not isinstance(blocks, IntegerAttr) or not 1 <= blocks.value.data <= MOST_BLOCKS:
        raise VerifyException(f"a cluster of {blocks}, expected 1 to {MOST_BLOCKS} blocks")
    if grid % blocks.value.data:
        raise VerifyException(f"clusters of {blocks.value.data} blocks do not divide a grid of {grid}")


def _check_in_cluster(op: Operation) -> None:
    """VerifyException for an operation of a kernel that has no clusters."""
    kernel = op.parent_op()
    while kernel is not None and kernel.name not in _KERNELS:
        kernel = kernel.parent_op()
    if kernel is not None and "cluster" not in {**kernel.properties, **kernel.attributes}:
        raise VerifyException(f"in a kernel without clusters: expected a number of blocks of them at {kernel.name}")


@irdl_op_definition
class ClusterArriveOp(IRDLOperation):
    """
    The calling thread arrives at the barrier of its cluster, and goes on. Threads that wait for it know that its block
    has started, and may use the barriers in shared memory that `hopper.mbarrier_fence` published before; they know of
    nothing else that it wrote.

    ```mlir
    hopper.cluster_arrive
    ```

    Every thread of every block arrives, and waits by `hopper.cluster_wait` before it arrives again. Rejected: in a
    kernel without clusters.
    """

    name = "hopper.cluster_arrive"

    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"

    def verify_(self) -> None:
        _check_in_cluster(self)


@irdl_op_definition
class ClusterWaitOp(IRDLOperation):
    """
    Waits until every thread of the cluster has arrived by `hopper.cluster_arrive`.

    ```mlir
    hopper.cluster_wait
    ```

    Rejected: in a kernel without clusters.
    """

    name = "hopper.cluster_wait"

    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"

    def verify_(self) -> None:
        _check_in_cluster(self)


class StoreEffect(OrdersMemory):
    """Writes the buffer."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        assert isinstance(op, StoreAsyncOp)
        return {*super().get_effects(op), EffectInstance(MemoryEffectKind.WRITE, op.buffer)}


@irdl_op_definition
class StoreAsyncOp(IRDLOperation):
    """
    Starts a store of two numbers to the shared memory of a block of the cluster, given by its rank there; it completes
    at a barrier of that block by its 8 bytes.

    ```mlir
    hopper.store_async %sums to %parts[%from, %row, %column] at %summed[%zero] of %to
      : vector<2xf32>, memref<4x32x72xf32, #loop.space<shared>>, memref<1x!hopper.mbarrier, #loop.space<shared>>
    ```

    A block's rank is its number modulo the blocks of a cluster. The block has started (`hopper.cluster_wait`), and does
    not end before the store is there: it waits by `hopper.mbarrier_wait cluster`. Rejected: anything but two numbers of
    32 bits with a type that the buffer has, too; what is not shared; in a kernel without clusters.
    """

    name = "hopper.store_async"

    value = operand_def(VectorType)
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    barrier = operand_def(MEMREF)
    place = operand_def(IndexType)
    rank = operand_def(IndexType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(StoreEffect())
    assembly_format = (
        "$value `to` $buffer `[` $indices `]` `at` $barrier `[` $place `]` `of` $rank attr-dict "
        "`:` type($value) `,` type($buffer) `,` type($barrier)"
    )

    def __init__(
        self,
        value: SSAValue,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        barrier: tuple[SSAValue, SSAValue],
        rank: SSAValue,
    ):
        """barrier: the buffer of barriers, and the index of one"""
        super().__init__(operands=[value, buffer, indices, *barrier, rank])

    def verify_(self) -> None:
        type, value = check_shared(self.buffer, len(self.indices)), self.value.type
        assert isinstance(value, VectorType)
        if value.get_shape() != (STORED,) or value.element_type not in (f32, i32):
            raise VerifyException(f"a store of {value}, expected vector<2xf32> or vector<2xi32>")
        if value.element_type != element_of(type):
            raise VerifyException(f"a store of {value} to '{type}'")
        check_mbarrier(self.barrier)
        _check_in_cluster(self)


__all__ = ["MOST_BLOCKS", "STORED", "ClusterArriveOp", "ClusterWaitOp", "StoreAsyncOp", "check_cluster"]
