"""Tensor maps: how a copy of a box, or of pixels of images, sees a tensor in global memory, and what the hardware
accepts."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
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
_MOST_PIXELS, _MOST_STEP = 1024, 8
_CORNER_BITS: Mapping[int, int] = {3: 16, 4: 8, 5: 5}
"""By the dimensions of images: the bits of a corner along a spatial dimension, and of an offset, which has no sign."""
_MADE = 0xA7
_FIELDS = struct.Struct("<QBBBBI5Q4Q5I3h3h3B5x")
"""TensorMap of the emulator's runtime/hopper.h, which knows by `_MADE` that it is one."""


@dataclass(frozen=True)
class EncodedMap:
    """What cuTensorMapEncodeTiled takes besides an address: innermost dimension first, strides in bytes and without
    the innermost one; of a map of pixels what cuTensorMapEncodeIm2col takes, where the box is channels and pixels.

    lower, upper: corners along the spatial dimensions of a map of pixels
    """

    data_type: int
    rank: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()


@dataclass(frozen=True)
class PixelBox:
    """The pixels of images that copies walk over, along each spatial dimension, the outermost first: from `lower` to
    the image's end moved by `upper`, not included, `steps` apart. A copy adds offsets, from 0 on, to each of them; what
    then lies outside of the image is 0.

    Of a convolution they are the first pixels of windows: `lower` is minus the padding before the image.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of(counts: Sequence[int], steps: Sequence[int], lower: Sequence[int], extents: Sequence[int]) -> PixelBox:
        """That of so many pixels along each dimension of an image of some extents."""
        ends = [low + (count - 1) * step + 1 for count, step, low in zip(counts, steps, lower, strict=True)]
        upper = tuple(end - extent for end, extent in zip(ends, extents, strict=True))
        return PixelBox(tuple(lower), upper, tuple(steps))

    def counts(self, extents: Sequence[int]) -> tuple[int, ...]:
        """How many pixels a copy takes along each dimension of an image of some extents."""
        each = zip(self.lower, self.upper, self.steps, extents, strict=True)
        return tuple((extent + upper - lower - 1) // step + 1 for lower, upper, step, extent in each)

    def check(self, extents: Sequence[int]) -> None:
        """TreadleError unless copies can walk over images of such extents."""
        spatial = len(extents)
        if spatial + 2 not in _CORNER_BITS:
            raise _error(f"images of {spatial} dimensions", "1 to 3")
        if not len(self.lower) == len(self.upper) == len(self.steps) == spatial:
            raise _error(
                f"{len(self.lower)} and {len(self.upper)} corners and {len(self.steps)} steps", f"{spatial} of each"
            )
        half = 1 << (_CORNER_BITS[spatial + 2] - 1)
        for corner in (*self.lower, *self.upper):
            if not -half <= corner < half:
                raise _error(f"a corner of {corner}", f"{-half} to {half - 1} for images of {spatial} dimensions")
        for step in self.steps:
            if not 1 <= step <= _MOST_STEP:
                raise _error(f"a step of {step}", f"1 to {_MOST_STEP}")
        for count in self.counts(extents):
            if count < 1:
                raise _error("corners with no pixel between them", "one or more")


def most_offset(dimensions: int) -> int:
    """That a copy may add along a spatial dimension of images with so many dimensions, batch and channels included."""
    return (1 << _CORNER_BITS[dimensions]) - 1


@dataclass(frozen=True)
class TensorMap:
    """A tensor of one to five dimensions, the outermost first, and the box of it that a copy moves.

    element: the name of the elements' type; strides: in bytes, of every dimension but the innermost, whose elements
    are neighbours; swizzle: the span in bytes by which rows are permuted in shared memory, 0 for none
    pixels: of images `[N, spatial..., C]`, where a copy moves consecutive pixels of a walk over them; `box` is then
    pixels and channels of each

    Raises TreadleError for what cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col do not take. Source: CUDA Driver API
    13.0, "Tensor Map Object Management"; PTX ISA 9.0, "Im2col mode".
    """

    element: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    pixels: PixelBox | None = None

    def __post_init__(self) -> None:
        rank, of_box = len(self.extents), len(self.extents) if self.pixels is None else 2
        if self.element not in _DATA_TYPES:
            raise _error(f"elements of {self.element}", ", ".join(_DATA_TYPES))
        if not 1 <= rank <= MOST_DIMENSIONS:
            raise _error(f"{rank} dimensions", f"1 to {MOST_DIMENSIONS}")
        if len(self.strides) != rank - 1 or len(self.box) != of_box:
            message = f"{rank} extents, {len(self.strides)} strides and a box of {len(self.box)}"
            raise _error(message, f"a stride for each dimension but the innermost, and a box of {of_box}")
        for extent in self.extents:
            if not 1 <= extent <= _MOST_EXTENT:
                raise _error(f"an extent of {extent}", "1 to 2^32")
        for stride in self.strides:
            if stride % ALIGNMENT or not 0 < stride < _MOST_STRIDE:
                raise _error(f"a stride of {stride} bytes", f"multiples of {ALIGNMENT} below 2^40")
        self._check_box()
        row = self.box[-1] * self.element_bytes
        if row % ALIGNMENT:
            raise _error(f"rows of a box of {row} bytes", f"multiples of {ALIGNMENT}")
        if self.swizzle not in SPANS:
            raise _error(f"a swizzle of {self.swizzle} bytes", ", ".join(map(str, SPANS)))
        if self.swizzle and row > self.swizzle:
            raise _error(f"rows of {row} bytes swizzled by {self.swizzle}", "rows of at most the span")

    def _check_box(self) -> None:
        most = [_MOST_OF_BOX] * len(self.box)
        if self.pixels is not None:
            most[0] = _MOST_PIXELS
            self.pixels.check(self.extents[1:-1])
        for extent, limit in zip(self.box, most, strict=True):
            if not 1 <= extent <= limit:
                raise _error(f"a box of {extent} elements along a dimension", f"1 to {limit}")

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
        """The map as the driver takes it."""
        pixels = self.pixels
        steps = (1,) * len(self.extents) if pixels is None else (1, *pixels.steps[::-1], 1)
        return EncodedMap(
            data_type=_DATA_TYPES[self.element][0],
            rank=len(self.extents),
            extents=self.extents[::-1],
            strides=self.strides[::-1],
            box=self.box[::-1],
            element_strides=steps,
            swizzle=SPANS.index(self.swizzle),
            lower=() if pixels is None else pixels.lower[::-1],
            upper=() if pixels is None else pixels.upper[::-1],
        )

    def emulated(self, address: int) -> bytes:
        """The 128 bytes that a kernel gets on the emulator, of a tensor at an address. TreadleError for an address that
        is no multiple of 16."""
        if address % ALIGNMENT:
            raise _error(f"the address {address:#x}", f"a multiple of {ALIGNMENT}")
        encoded = self.encoded()
        # Steps of 0 say that it is no map of pixels.
        steps = () if self.pixels is None else encoded.element_strides[1:-1]
        return _FIELDS.pack(
            address, self.element_bytes, encoded.rank, _OF_MATRICES[self.swizzle], _MADE, encoded.data_type,
            *_padded(encoded.extents, 5), *_padded(encoded.strides, 4), *_padded(encoded.box, 5),
            *_padded(encoded.lower, 3), *_padded(encoded.upper, 3), *_padded(steps, 3),
        )  # fmt: skip

    def __str__(self) -> str:
        inside = f"{list(self.extents)} strides {list(self.strides)} box {list(self.box)} swizzle {self.swizzle}"
        if self.pixels is not None:
            inside += f" pixels {list(self.pixels.lower)} to {list(self.pixels.upper)} by {list(self.pixels.steps)}"
        return f"{self.element}{inside}"


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*values, *(0 for _ in range(length - len(values))))


def _error(message: str, accepted: str) -> TreadleError:
    return TreadleError(message, "tensor map", accepted)
