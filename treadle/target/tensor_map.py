"""Tensor maps: how a copy of a box sees a tensor in global memory, and what the hardware accepts."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from treadle.errors import TreadleError

SPANS = (0, 32, 64, 128)
"""Bytes of the rows that a swizzle permutes; 0 for none."""
MAP_BYTES = 128
ALIGNMENT = 16
"""Bytes of which a tensor's address and its strides are multiples."""

_DATA_TYPES: Mapping[str, tuple[int, int]] = {
    "ui8": (0, 1), "i8": (0, 1), "f8E4M3FN": (0, 1), "f8E5M2": (0, 1), "ui16": (1, 2), "i16": (1, 2), "ui32": (2, 4),
    "i32": (3, 4), "ui64": (4, 8), "i64": (5, 8), "f16": (6, 2), "f32": (7, 4), "f64": (8, 8), "bf16": (9, 2),
}  # fmt: skip
"""By the names of element types: the number that CUtensorMapDataType has for it, and its bytes."""
_OF_MATRICES = {0: 0, 128: 1, 64: 2, 32: 3}
"""By span: the swizzle as matrix descriptors, and the emulator, number it; CUtensorMapSwizzle has another order."""
MOST_DIMENSIONS, _MOST_OF_BOX = 5, 256
_MOST_EXTENT, _MOST_STRIDE = 1 << 32, 1 << 40
_MADE = 0xA7
_FIELDS = struct.Struct("<QBBBBI5Q4Q5I20x")
"""TensorMap of the emulator's runtime/hopper.h, which knows by `_MADE` that it is one."""


@dataclass(frozen=True)
class EncodedMap:
    """What cuTensorMapEncodeTiled takes besides an address: innermost dimension first, strides in bytes and without
    the innermost one."""

    data_type: int
    rank: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor of one to five dimensions, the outermost first, and the box of it that a copy moves.

    element: the name of the elements' type; strides: in bytes, of every dimension but the innermost, whose elements
    are neighbours; swizzle: the span in bytes by which rows are permuted in shared memory, 0 for none

    Raises TreadleError for what cuTensorMapEncodeTiled does not take. Source: CUDA Driver API 13.0, "Tensor Map Object
    Management".
    """

    element: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        rank = len(self.extents)
        if self.element not in _DATA_TYPES:
            raise _error(f"elements of {self.element}", ", ".join(_DATA_TYPES))
        if not 1 <= rank <= MOST_DIMENSIONS:
            raise _error(f"{rank} dimensions", f"1 to {MOST_DIMENSIONS}")
        if len(self.strides) != rank - 1 or len(self.box) != rank:
            message = f"{rank} extents, {len(self.strides)} strides and a box of {len(self.box)}"
            raise _error(message, "a stride for each dimension but the innermost, and a box of as many as there are")
        for extent in self.extents:
            if not 1 <= extent <= _MOST_EXTENT:
                raise _error(f"an extent of {extent}", "1 to 2^32")
        for stride in self.strides:
            if stride % ALIGNMENT or not 0 < stride < _MOST_STRIDE:
                raise _error(f"a stride of {stride} bytes", f"multiples of {ALIGNMENT} below 2^40")
        for extent in self.box:
            if not 1 <= extent <= _MOST_OF_BOX:
                raise _error(f"a box of {extent} elements along a dimension", f"1 to {_MOST_OF_BOX}")
        row = self.box[-1] * self.element_bytes
        if row % ALIGNMENT:
            raise _error(f"rows of a box of {row} bytes", f"multiples of {ALIGNMENT}")
        if self.swizzle not in SPANS:
            raise _error(f"a swizzle of {self.swizzle} bytes", ", ".join(map(str, SPANS)))
        if self.swizzle and row > self.swizzle:
            raise _error(f"rows of {row} bytes swizzled by {self.swizzle}", "rows of at most the span")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return _DATA_TYPES[self.element][1]

    @property
    def box_bytes(self) -> int:
        """What a copy brings to its barrier, elements outside of the tensor included."""
        return prod(self.box) * self.element_bytes

    @property
    def span(self) -> int:
        """Bytes from the first to the last element."""
        moved = sum((extent - 1) * stride for extent, stride in zip(self.extents, self.strides, strict=False))
        return moved + self.extents[-1] * self.element_bytes

    def encoded(self) -> EncodedMap:
        """The map as cuTensorMapEncodeTiled takes it."""
        return EncodedMap(
            data_type=_DATA_TYPES[self.element][0],
            rank=len(self.extents),
            extents=self.extents[::-1],
            strides=self.strides[::-1],
            box=self.box[::-1],
            element_strides=(1,) * len(self.extents),
            swizzle=SPANS.index(self.swizzle),
        )

    def emulated(self, address: int) -> bytes:
        """The 128 bytes that a kernel gets on the emulator, of a tensor at an address. TreadleError for an address that
        is no multiple of 16."""
        if address % ALIGNMENT:
            raise _error(f"the address {address:#x}", f"a multiple of {ALIGNMENT}")
        encoded = self.encoded()
        return _FIELDS.pack(
            address, self.element_bytes, encoded.rank, _OF_MATRICES[self.swizzle], _MADE, encoded.data_type,
            *_padded(encoded.extents, 5), *_padded(encoded.strides, 4), *_padded(encoded.box, 5),
        )  # fmt: skip

    def __str__(self) -> str:
        inside = f"{list(self.extents)} strides {list(self.strides)} box {list(self.box)} swizzle {self.swizzle}"
        return f"{self.element}{inside}"


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*values, *(0 for _ in range(length - len(values))))


def _error(message: str, accepted: str) -> TreadleError:
    return TreadleError(message, "tensor map", accepted)
