"""Attributes of the `cuda` dialect, and the sizes and alignments of memrefs, for its verifiers."""

from __future__ import annotations

from enum import auto
from typing import Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    IndexType,
    IntegerType,
    MemRefType,
    NoneAttr,
    VectorType,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum

from treadle.dialects.hopper.attributes import MBARRIER_BYTES, MbarrierType


class Space(StrEnum):
    """Where a buffer lives; a memref without a space is in global memory."""

    SHARED = auto()
    """Seen by all threads of a block."""
    LOCAL = auto()
    """Private to a thread: registers, if every index into it is constant after unrolling."""


class Dimension(StrEnum):
    """An axis of the grid or of the block."""

    X = auto()
    Y = auto()
    Z = auto()


class ShuffleMode(StrEnum):
    """From which lane of the warp a shuffle reads, for a reader at lane `l` and operand `n`."""

    DOWN = auto()
    """Lane `l + n`; its own value where that is past the last lane."""
    UP = auto()
    """Lane `l - n`; its own value where that is before the first lane."""
    XOR = auto()
    """Lane `l ^ n`."""
    IDX = auto()
    """Lane `n`."""


class MmaShape(StrEnum):
    """Rows of A and C, columns of B and C, columns of A and rows of B."""

    M16N8K16 = auto()
    M16N8K8 = auto()
    M16N8K32 = auto()


@irdl_attr_definition
class SpaceAttr(EnumAttribute[Space]):
    """The memory space of a memref: `#cuda.space<shared>` or `#cuda.space<local>`."""

    name = "cuda.space"

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            super().print_parameter(printer)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Space:
        with parser.in_angle_brackets():
            return super().parse_parameter(parser)


@irdl_attr_definition
class DimensionAttr(EnumAttribute[Dimension], SpacedOpaqueSyntaxAttribute):
    """An axis: `x`, `y` or `z`."""

    name = "cuda.dim"


@irdl_attr_definition
class ShuffleModeAttr(EnumAttribute[ShuffleMode], SpacedOpaqueSyntaxAttribute):
    """A way to choose the lane that a shuffle reads: `down`, `up`, `xor` or `idx`."""

    name = "cuda.shuffle_mode"


@irdl_attr_definition
class MmaShapeAttr(EnumAttribute[MmaShape], SpacedOpaqueSyntaxAttribute):
    """The shape of a tensor core product: `m16n8k16`, `m16n8k8` or `m16n8k32`."""

    name = "cuda.mma_shape"


# Sizes and alignments of memrefs, for the verifiers of the `cuda` dialect.

AnyMemRef = MemRefType[Any]

_FLOAT_WIDTHS = (4, 8, 16, 32, 64)
_INTEGER_WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def element_bytes(element_type: Attribute) -> int | None:
    """Bytes that one element takes in memory, or None for a type that CUDA text has no equivalent of.

    A number of fewer bits than a byte is one and an `index` is eight; a vector is its elements.
    """
    if isinstance(element_type, MbarrierType):
        return MBARRIER_BYTES
    if isinstance(element_type, VectorType):
        size = element_bytes(element_type.element_type)
        return None if size is None else size * element_type.element_count()
    if isinstance(element_type, AnyFloat):
        return max(1, element_type.bitwidth // 8) if element_type.bitwidth in _FLOAT_WIDTHS else None
    if isinstance(element_type, IndexType):
        return 8
    if isinstance(element_type, IntegerType) and element_type.width.data in _INTEGER_WIDTHS:
        return max(1, element_type.width.data // 8)
    return None


def buffer_bytes(buffer: AnyMemRef) -> int | None:
    """Bytes from the first to the last element of `buffer`, padding between rows included.

    None if an extent or a stride is not static, or the element type has no size.
    """
    size = element_bytes(buffer.element_type)
    strides = buffer.get_strides()
    if size is None or strides is None or DYNAMIC_INDEX in buffer.get_shape():
        return None
    last = 0
    for extent, stride in zip(buffer.get_shape(), strides, strict=True):
        if stride is None:
            return None
        last += (extent - 1) * stride
    return (last + 1) * size


def space_of(buffer: AnyMemRef) -> Space | None:
    """The `cuda` memory space of `buffer`; None for global memory, and for a space of another dialect."""
    return buffer.memory_space.data if isinstance(buffer.memory_space, SpaceAttr) else None


def is_global(buffer: AnyMemRef) -> bool:
    """Whether `buffer` is in global memory."""
    return isinstance(buffer.memory_space, NoneAttr)


def row_misalignment(buffer: AnyMemRef, align: int) -> str | None:
    """Why rows of `buffer` cannot all start at multiples of `align` bytes; None if they may.

    The innermost stride must be one element, and every other stride a multiple of `align` bytes. An extent of one never
    moves, so its stride does not matter; a stride that is not static is assumed to be aligned.
    """
    size = element_bytes(buffer.element_type)
    strides = buffer.get_strides()
    if size is None or strides is None or not strides:
        return f"'{buffer}' has no rows of elements"
    if strides[-1] not in (1, None):
        return f"neighbouring elements of '{buffer}' are {strides[-1]} elements apart"
    for extent, stride in zip(buffer.get_shape()[:-1], strides[:-1], strict=True):
        if extent != 1 and stride is not None and stride * size % align:
            return f"'{buffer}' has a stride of {stride * size} bytes, not a multiple of {align}"
    return None
