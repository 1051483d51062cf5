"""Tensor maps: where a tensor lies in global memory, and the box of it that one copy moves to or from shared memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import bf16, f16, f32, f64, i8, i16, i32, i64
from xdsl.ir import Attribute

from treadle.dialects.graph.dtypes import STORED_TYPES, ui8, ui16, ui32, ui64
from treadle.errors import TreadleError
from treadle.target.tensor_map import TensorMap as LaunchMap

_DATA_TYPES: dict[Attribute, tuple[int, int]] = {
    ui8: (0, 1), i8: (0, 1), ui16: (1, 2), i16: (1, 2), ui32: (2, 4), i32: (3, 4), ui64: (4, 8), i64: (5, 8),
    f16: (6, 2), f32: (7, 4), f64: (8, 8), bf16: (9, 2), **dict.fromkeys(STORED_TYPES, (0, 1)),
}  # fmt: skip
"""By element type: the number that CUtensorMapDataType has for it, and its bytes."""

SPANS = {0: 16, 1: 128, 2: 64, 3: 32}
"""By swizzle, as `treadle_matrix` numbers them: the bytes of a row, within which pieces of 16 bytes change places."""

_CUDA_SWIZZLES = {0: 0, 3: 1, 2: 2, 1: 3}
"""By swizzle: its number in CUtensorMapSwizzle."""

MAP_BYTES = 128
_MADE = 0xA7  # as runtime/hopper.h has it
_FIELDS = struct.Struct("<QBBBBI5Q4Q5I20x")

_ALIGNMENT = 16
_MOST_RANK = 5
_MOST_BOX = 256
_MOST_EXTENT = 1 << 32
_MOST_STRIDE = 1 << 40


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
    """A tensor of one to five dimensions, the outermost first, as memrefs have them, and a box of it.

    element: the type of the elements
    extents: elements by dimension
    strides: elements from one to the next by dimension; the innermost one is 1
    box:     elements by dimension that one copy moves
    swizzle: how rows of the box lie in shared memory, as `treadle_matrix` numbers them: 0 as they are, 1, 2 and 3 with
             pieces of 16 bytes exchanged within 128, 64 and 32 bytes

    Raises TreadleError for what cuTensorMapEncodeTiled does not take (CUDA Driver API, "Tensor Map Object Management").
    """

    element: Attribute
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        rank = len(self.extents)
        if self.element not in _DATA_TYPES:
            raise _error(f"elements of type {self.element}", "integers and floats of 8 to 64 bits")
        if not 1 <= rank <= _MOST_RANK:
            raise _error(f"{rank} dimensions", f"1 to {_MOST_RANK}")
        if len(self.strides) != rank or len(self.box) != rank:
            message = f"{len(self.strides)} strides and a box of {len(self.box)} dimensions"
            raise _error(message, f"{rank} of each, as there are extents")
        if self.swizzle not in SPANS:
            raise _error(f"swizzle {self.swizzle!r}", "0, or 1, 2 and 3 for 128, 64 and 32 bytes")
        self._check_extents()
        self._check_box()

    def _check_extents(self) -> None:
        for number, extent in enumerate(self.extents):
            if not 1 <= extent <= _MOST_EXTENT:
                raise _error(f"extent {extent} of dimension {number}", f"1 to {_MOST_EXTENT}")
        if self.strides[-1] != 1:
            raise _error(f"the stride {self.strides[-1]} of the innermost dimension", "1")
        for number, stride in enumerate(self.strides[:-1]):
            size = stride * self.element_bytes
            if not 0 < size < _MOST_STRIDE or size % _ALIGNMENT:
                message = f"the stride of dimension {number} of {size} bytes"
                raise _error(message, f"a multiple of {_ALIGNMENT} below {_MOST_STRIDE}")

    def _check_box(self) -> None:
        for number, extent in enumerate(self.box):
            if not 1 <= extent <= _MOST_BOX:
                raise _error(f"extent {extent} of the box in dimension {number}", f"1 to {_MOST_BOX}")
        row = self.box[-1] * self.element_bytes
        if row % _ALIGNMENT:
            raise _error(f"a box with rows of {row} bytes", f"a multiple of {_ALIGNMENT}")
        if self.swizzle and row > SPANS[self.swizzle]:
            raise _error(f"a box with rows of {row} bytes", f"at most the swizzle's {SPANS[self.swizzle]}")

    @property
    def element_bytes(self) -> int:
        """The size of an element."""
        return _DATA_TYPES[self.element][1]

    @property
    def box_bytes(self) -> int:
        """What a copy brings to its barrier; elements outside of the tensor count, too."""
        return prod(self.box) * self.element_bytes

    @property
    def tensor_bytes(self) -> int:
        """From the first byte of the first element to the last byte of the last one."""
        last = sum((extent - 1) * stride for extent, stride in zip(self.extents, self.strides, strict=True))
        return (last + 1) * self.element_bytes

    def encoded(self) -> EncodedMap:
        """The map as cuTensorMapEncodeTiled takes it, whose interleave, promotion and fill are its first choices."""
        return EncodedMap(
            data_type=_DATA_TYPES[self.element][0],
            rank=len(self.extents),
            extents=self.extents[::-1],
            strides=tuple(stride * self.element_bytes for stride in self.strides[-2::-1]),
            box=self.box[::-1],
            element_strides=(1,) * len(self.extents),
            swizzle=_CUDA_SWIZZLES[self.swizzle],
        )

    def emulated(self, address: int) -> bytes:
        """The 128 bytes that a kernel gets on the emulator (TensorMap in runtime/hopper.h), which reads the address in
        the first eight. Raises TreadleError for an address that is no multiple of 16."""
        check_address(address)
        encoded = self.encoded()
        return _FIELDS.pack(
            address, self.element_bytes, encoded.rank, self.swizzle, _MADE, encoded.data_type,
            *_padded(encoded.extents, 5), *_padded(encoded.strides, 4), *_padded(encoded.box, 5),
        )  # fmt: skip


def check_address(address: int) -> None:
    """TreadleError where a tensor that begins at `address` can have no map."""
    if address % _ALIGNMENT:
        raise _error(f"the address {address:#x}", f"a multiple of {_ALIGNMENT}")


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*values, *(0 for _ in range(length - len(values))))


def _error(message: str, accepted: str) -> TreadleError:
    return TreadleError(message, "tensor map", accepted)


_ELEMENTS = {str(element): element for element in _DATA_TYPES}
_SWIZZLES = {128: 1, 64: 2, 32: 3, 0: 0}


def of_launch(map: LaunchMap) -> TensorMap:
    """The map of an artifact's launch."""
    element = _ELEMENTS[map.element]
    size = _DATA_TYPES[element][1]
    strides = (*(stride // size for stride in map.strides), 1)
    return TensorMap(element, map.extents, strides, map.box, _SWIZZLES[map.swizzle])
