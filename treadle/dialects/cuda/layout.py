"""Sizes and alignments of memrefs, for the verifiers of the `cuda` dialect."""

from __future__ import annotations

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
from xdsl.ir import Attribute

from treadle.dialects.cuda.attributes import Space, SpaceAttr

AnyMemRef = MemRefType[Any]

_FLOAT_WIDTHS = (4, 8, 16, 32, 64)
_INTEGER_WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def element_bytes(element_type: Attribute) -> int | None:
    """Bytes that one element takes in memory, or None for a type that CUDA text has no equivalent of.

    A number of fewer bits than a byte is one and an `index` is eight; a vector is its elements.
    """
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
