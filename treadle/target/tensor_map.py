"""Tensor maps as values: how copies of boxes see a tensor, and what the hardware accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from treadle.errors import TreadleError

SPANS = (0, 32, 64, 128)
"""Bytes of the rows that a swizzle permutes; 0 for none."""
MOST_DIMENSIONS, MOST_OF_BOX, ALIGNMENT = 5, 256, 16
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "ui8": 1, "f8E4M3FN": 1, "f8E5M2": 1}
"""By the names of element types."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor of some extents, the outermost first, and the box of it that a copy moves.

    element: the name of the elements' type; strides: in bytes, of every dimension but the innermost, whose elements
    are neighbours; swizzle: the span in bytes by which rows are permuted in shared memory, 0 for none

    Source: CUDA Driver API 13.0, cuTensorMapEncodeTiled.
    """

    element: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.element]

    @property
    def box_bytes(self) -> int:
        """What a copy brings, elements outside of the tensor included."""
        return prod(self.box) * self.element_bytes

    @property
    def span(self) -> int:
        """Bytes from the first to the last element."""
        moved = sum((extent - 1) * stride for extent, stride in zip(self.extents, self.strides, strict=False))
        return moved + self.extents[-1] * self.element_bytes

    def __str__(self) -> str:
        inside = f"{list(self.extents)} strides {list(self.strides)} box {list(self.box)} swizzle {self.swizzle}"
        return f"{self.element}{inside}"

    def check(self) -> None:
        """TreadleError for a map that the hardware does not take."""
        where, rank = "tensor map", len(self.extents)
        if self.element not in ELEMENT_BYTES:
            raise TreadleError(f"elements of {self.element}", where, ELEMENT_BYTES)
        if not 1 <= rank <= MOST_DIMENSIONS or len(self.box) != rank or len(self.strides) != rank - 1:
            message = f"{rank} extents, {len(self.strides)} strides and a box of {len(self.box)}"
            raise TreadleError(
                message, where, f"1 to {MOST_DIMENSIONS} dimensions, a stride for each but the innermost"
            )
        for extent in self.extents:
            if not 1 <= extent <= 1 << 32:
                raise TreadleError(f"an extent of {extent}", where, "1 to 2^32")
        for stride in self.strides:
            if stride % ALIGNMENT or not 0 < stride < 1 << 40:
                raise TreadleError(f"a stride of {stride} bytes", where, f"multiples of {ALIGNMENT} below 2^40")
        for extent in self.box:
            if not 1 <= extent <= MOST_OF_BOX:
                raise TreadleError(f"a box of {extent} elements along a dimension", where, f"1 to {MOST_OF_BOX}")
        row = self.box[-1] * self.element_bytes
        if row % ALIGNMENT:
            raise TreadleError(f"rows of a box of {row} bytes", where, f"multiples of {ALIGNMENT}")
        if self.swizzle not in SPANS:
            raise TreadleError(f"a swizzle of {self.swizzle} bytes", where, SPANS)
        if self.swizzle and row > self.swizzle:
            raise TreadleError(f"rows of {row} bytes swizzled by {self.swizzle}", where, "rows of at most the span")
