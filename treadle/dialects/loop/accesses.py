"""The accesses of a kernel to its buffers, with what their cost depends on: indices, widths, predicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from math import prod

from xdsl.dialects import memref, vector
from xdsl.dialects.builtin import FixedBitwidthType, MemRefType, VectorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects import hopper
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.hopper.cluster import STORED
from treadle.dialects.loop import (
    ArriveOp,
    AsyncCopyOp,
    CopyOp,
    LoadMatrixOp,
    LoadOp,
    MultiplyTilesOp,
    Space,
    SpaceAttr,
    StoreOp,
    StridedLoadOp,
    StridedStoreOp,
    TransposeOp,
)
from treadle.dialects.loop.tiles import WARP


@dataclass(frozen=True)
class Access:
    """What each lane reads or writes: `elements` elements from `indices` on. Only the first `lanes` lanes take part."""

    buffer: SSAValue
    indices: Sequence[SSAValue]
    elements: int
    is_store: bool
    lanes: int = WARP
    predicate: SSAValue | None = None
    mask: SSAValue | None = None
    """Which of several elements are accessed; None means all."""
    stride: int = 1
    """From one element to the next, along the last dimension."""
    value: SSAValue | None = None
    """What is loaded or stored, if it is one value of the kernel."""

    @property
    def type(self) -> MemRefType:
        """The buffer's."""
        type = self.buffer.type
        assert isinstance(type, MemRefType)
        return type

    @property
    def space(self) -> Space | None:
        """Where the buffer lies; None in global memory."""
        memory = self.type.memory_space
        return memory.data if isinstance(memory, SpaceAttr) else None

    @property
    def element_bytes(self) -> int | None:
        """Bytes of one element; None where its type has no width."""
        element = self.type.get_element_type()
        return max(1, element.bitwidth // 8) if isinstance(element, FixedBitwidthType) else None

    @property
    def strides(self) -> list[int]:
        """Row-major strides of the buffer, in elements."""
        shape = self.type.get_shape()
        return [prod(shape[n + 1 :]) for n in range(len(shape))]


@singledispatch
def accesses(op: Operation) -> list[Access]:
    """What an operation reads and writes; nothing for other operations."""
    return []


@accesses.register
def _(op: LoadOp) -> list[Access]:
    return [Access(op.buffer, op.indices, 1, False, predicate=op.predicate, value=op.result)]


@accesses.register
def _(op: StoreOp) -> list[Access]:
    return [Access(op.buffer, op.indices, 1, True, predicate=op.predicate, value=op.value)]


@accesses.register
def _(op: memref.LoadOp) -> list[Access]:
    return [Access(op.memref, op.indices, 1, False, value=op.res)]


@accesses.register
def _(op: memref.StoreOp) -> list[Access]:
    return [Access(op.memref, op.indices, 1, True, value=op.value)]


@accesses.register
def _(op: vector.MaskedLoadOp) -> list[Access]:
    return [Access(op.base, op.indices, _count(op.result), False, mask=op.mask, value=op.result)]


@accesses.register
def _(op: vector.MaskedStoreOp) -> list[Access]:
    value = op.value_to_store
    return [Access(op.base, op.indices, _count(value), True, mask=op.mask, value=value)]


@accesses.register
def _(op: StridedLoadOp) -> list[Access]:
    stride = op.stride.value.data
    return [Access(op.buffer, op.indices, _count(op.result), False, mask=op.mask, stride=stride, value=op.result)]


@accesses.register
def _(op: StridedStoreOp) -> list[Access]:
    stride = op.stride.value.data
    return [Access(op.buffer, op.indices, _count(op.value), True, mask=op.mask, stride=stride, value=op.value)]


@accesses.register
def _(op: TransposeOp) -> list[Access]:
    return [Access(op.buffer, op.indices, op.lanes, is_store) for is_store in (False, True)]


@accesses.register
def _(op: vector.LoadOp) -> list[Access]:
    return [Access(op.base, op.indices, _count(op.result), False, value=op.result)]


@accesses.register
def _(op: vector.StoreOp) -> list[Access]:
    return [Access(op.base, op.indices, _count(op.vector), True, value=op.vector)]


@accesses.register
def _(op: AsyncCopyOp) -> list[Access]:
    read = Access(op.source, op.source_indices, op.count, False, predicate=op.predicate)
    return [read, Access(op.buffer, op.indices, op.count, True)]


@accesses.register
def _(op: CopyOp) -> list[Access]:
    return [Access(op.buffer, op.indices, op.count, True)]


@accesses.register
def _(op: ArriveOp) -> list[Access]:
    return [Access(op.counters, [op.index], 1, True, lanes=1)]


@accesses.register
def _(op: LoadMatrixOp) -> list[Access]:
    # Eight lanes give the addresses of the rows of each matrix, 16 bytes each.
    row = 4 * op.fragment.type.get_shape()[-1]
    return [Access(op.buffer, op.indices, row, False, lanes=8 * op.matrices, value=op.fragment)]


@accesses.register
def _(op: MultiplyTilesOp) -> list[Access]:
    rows, columns, _ = op.extents
    sums = Access(op.acc, op.acc_indices, rows * columns, True, lanes=1)
    left = Access(op.a, op.a_indices, op.reach, False, lanes=1)
    return [sums, left, Access(op.b, op.b_indices, op.panel_elements, False, lanes=1)]


@accesses.register
def _(op: hopper.BulkCopyOp) -> list[Access]:
    return [Access(op.buffer, op.indices, prod(op.extents), True, lanes=1)]


@accesses.register
def _(op: hopper.TensorLoadOp) -> list[Access]:
    return [Access(op.buffer, op.indices, op.elements, True, lanes=1)]


@accesses.register
def _(op: hopper.TensorStoreOp) -> list[Access]:
    return [Access(op.buffer, op.indices, op.elements, False, lanes=1)]


@accesses.register
def _(op: hopper.MbarrierInitOp | hopper.MbarrierArriveOp | hopper.MbarrierWaitOp) -> list[Access]:
    return [Access(op.barrier, [op.index], 1, True, lanes=1)]


@accesses.register
def _(op: hopper.StoreAsyncOp) -> list[Access]:
    return [Access(op.buffer, op.indices, STORED, True), Access(op.barrier, [op.place], 1, True)]


@accesses.register
def _(op: hopper.WgmmaOp) -> list[Access]:
    reach = op.reach
    return [Access(op.a, op.a_indices, reach[0], False), Access(op.b, op.b_indices, reach[1], False)]


@accesses.register
def _(op: hopper.WgmmaRegistersOp) -> list[Access]:
    return [Access(op.b, op.b_indices, op.reach, False)]


def buffer_bytes(type: MemRefType) -> int:
    """The bytes of a buffer, whose elements may be vectors."""
    element = type.get_element_type()
    if isinstance(element, VectorType):
        return prod(type.get_shape()) * element.element_count() * byte_width(element.get_element_type())
    return prod(type.get_shape()) * byte_width(element)


def name_of(buffer: SSAValue) -> str:
    """What a buffer is called in reports."""
    return buffer.name_hint or "buffer"


def _count(value: SSAValue) -> int:
    type = value.type
    assert isinstance(type, VectorType)
    return type.element_count()


__all__ = ["Access", "accesses", "buffer_bytes", "name_of"]
