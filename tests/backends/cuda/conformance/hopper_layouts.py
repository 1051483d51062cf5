"""Shared memory as compute capability 9.0 wants it: tiles of tensor copies, and operands of products of a warpgroup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SPANS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes of a swizzle's row, by what `treadle_matrix` calls it."""


def swizzled(address: Array, swizzle: int) -> Array:
    """Where a byte lies that would be at `address`: pieces of 16 bytes change places within a row of the span.

    Source: PTX ISA, "Tensor swizzling modes".
    """
    mask = {0: 0, 1: 7, 2: 3, 3: 1}[swizzle]
    return address ^ ((address >> 7 & mask) << 4)


def tile(box: Array, swizzle: int) -> Array:
    """The bytes of a box in shared memory, dense but for rows of the swizzle's span; what lies between is 0."""
    rows = np.ascontiguousarray(box).reshape(-1, box.shape[-1])
    raw = rows.view(np.uint8)
    pitch = SPANS[swizzle] if swizzle else raw.shape[1]
    row, byte = np.indices(raw.shape)
    made = np.zeros(raw.shape[0] * pitch, np.uint8)
    made[swizzled(row * pitch + byte, swizzle)] = raw
    return made


def boxed(tensor: Array, box: Sequence[int], at: Sequence[int]) -> Array:
    """The box of a tensor that begins at `at`, outermost first; what lies outside is 0."""
    made = np.zeros(box, tensor.dtype)
    spans = [
        (max(0, start), min(extent, start + size)) for start, size, extent in zip(at, box, tensor.shape, strict=True)
    ]
    inside = tuple(slice(low, high) for low, high in spans)
    here = tuple(slice(low - start, high - start) for (low, high), start in zip(spans, at, strict=True))
    made[here] = tensor[inside]
    return made


@dataclass(frozen=True)
class Image:
    """An operand in shared memory: its bytes, and what a matrix descriptor says of it."""

    data: Array
    leading: int
    stride: int
    swizzle: int
    advance: int
    """Bytes to the next 32 bytes of terms."""


def operand(elements: Array, swizzle: int, across: bool) -> Image:
    """A matrix of rows (of A) or columns (of B) x terms, which lies along the terms, or across them.

    Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"; CUTLASS, mma_traits_sm90_gmma.hpp.
    """
    rows, terms = elements.shape
    size, span = elements.dtype.itemsize, SPANS[swizzle]
    row, term = (np.asarray(each) for each in np.indices(elements.shape))
    if across:
        in_span, leading, stride = span // size, terms * span, 8 * span
        address = row // in_span * leading + term // 8 * stride + term % 8 * span + row % in_span * size
        advance = 16 // 8 * stride
        if not swizzle:
            leading, stride = stride, leading
    elif swizzle:
        leading, stride, advance = 16, 8 * span, 32
        address = row // 8 * stride + row % 8 * span + term * size
    else:
        byte = term * size
        leading, stride = 128, terms * size * 8
        address = row // 8 * stride + byte // 16 * leading + row % 8 * 16 + byte % 16
        advance = 2 * leading
    raw = np.ascontiguousarray(elements).view(np.uint8).reshape(rows, terms, size)
    places = swizzled(np.asarray(address), swizzle)[..., None] + np.arange(size)
    data = np.zeros(-(-(int(places.max()) + 1) // 1024) * 1024, np.uint8)
    data[places] = raw
    return Image(data, leading, stride, swizzle, advance)
