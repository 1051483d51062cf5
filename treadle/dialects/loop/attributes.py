"""Memory spaces and layouts of a kernel's own buffers, swizzled ones among them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import cast

from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    IntAttr,
    IntegerType,
    MemRefLayoutAttr,
    MemRefType,
    NoneAttr,
    TensorType,
    VectorType,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Data, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import BaseAttr, irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum

from treadle.errors import TreadleError

# Swizzled rows: a permutation of the chunks of each row of a matrix, so that columns of chunks have no bank conflicts.
#
# Shared memory has 32 banks of 4 bytes; eight lanes that access 16 bytes each are served at once if their chunks have
# different addresses modulo 128 bytes. Row-major chunks of one column have not; permuted by the row's number they have:
#
#     >>> swizzle = swizzle_of_rows(64, 16)       # rows of 64 bytes, in chunks of 16
#     >>> [swizzle.stored_chunk(row, 0) for row in range(8)]
#     [0, 0, 1, 1, 2, 2, 3, 3]
#
# Two rows of 64 bytes fill the 128 bytes of all banks, hence two rows with the same permutation.

LINE_BYTES = 128
"""All banks once."""


@dataclass(frozen=True)
class Swizzle:
    """Chunk c of row r is stored at chunk `c xor (r / rows) % phases` of that row.

    chunk: consecutive elements that stay together; rows: consecutive rows that are permuted alike; phases: different
    permutations, a power of two that divides the number of chunks in a row
    """

    chunk: int
    rows: int
    phases: int

    def stored_chunk(self, row: int, chunk: int) -> int:
        """The chunk of the row at which a chunk is stored."""
        return chunk ^ (row // self.rows % self.phases)

    def column(self, row: int, column: int) -> int:
        """The element of the row at which an element is stored."""
        return self.stored_chunk(row, column // self.chunk) * self.chunk + column % self.chunk

    def problem(self, columns: int) -> str | None:
        """Why rows of `columns` elements cannot be swizzled by this, or None."""
        if self.chunk < 1 or self.rows < 1 or self.phases < 1 or self.phases & (self.phases - 1):
            return f"{self}: expected sizes of at least 1, and a power of two for the phases"
        if columns % (self.chunk * self.phases):
            return f"{self} of rows of {columns} elements: expected a multiple of {self.chunk * self.phases}"
        return None

    def __str__(self) -> str:
        return f"swizzle<{self.chunk}, {self.rows}, {self.phases}>"


def swizzle_of_rows(row_bytes: int, element_bytes: int, chunk_bytes: int = 16) -> Swizzle:
    """The swizzle under which a column of chunks has the fewest bank conflicts. Rows of an odd number of chunks need
    none: their columns have no conflicts in row-major order. TreadleError for rows that are no multiple of a chunk.
    """
    chunks, positions = row_bytes // chunk_bytes, LINE_BYTES // chunk_bytes
    if row_bytes % chunk_bytes:
        raise TreadleError(
            f"rows of {row_bytes} bytes in chunks of {chunk_bytes} have no swizzle",
            accepted=f"a multiple of {chunk_bytes} bytes",
        )
    # Row r begins at position chunks * r, which takes the same value again after `positions / phases` rows.
    phases = gcd(chunks, positions)
    return Swizzle(chunk_bytes // element_bytes, positions // phases, phases)


class Space(StrEnum):
    """Where a buffer of a kernel lives."""

    REGISTER = "register"
    SHARED = "shared"
    DEVICE = "device"
    ZEROED = "zeroed"

    @property
    def is_global(self) -> bool:
        """Whether all blocks of a launch share the buffer, as they share arguments."""
        return self in (Space.DEVICE, Space.ZEROED)


@irdl_attr_definition
class SpaceAttr(EnumAttribute[Space]):
    """The memory space of a buffer that a kernel allocates: private to a thread, shared by its block, or by all
    blocks of the launch: `device` for scratch memory, `zeroed` for memory that is 0 before and after every launch.

    ```mlir
    memref<64x8xf32, #loop.space<shared>>
    ```
    Tensors of a kernel have no space: they are global.
    """

    name = "loop.space"

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            super().print_parameter(printer)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Space:
        with parser.in_angle_brackets():
            return super().parse_parameter(parser)


@irdl_attr_definition
class SwizzleAttr(MemRefLayoutAttr, Data[Swizzle]):
    """A row-major layout in which each row's chunks are permuted: chunk, rows and phases of a `Swizzle`.

    ```mlir
    memref<3x128x32xf16, #loop.swizzle<8, 2, 4>, #loop.space<shared>>
    ```
    The last two dimensions are the rows and the elements of a row. Indices are those of the unpermuted matrix;
    `loop-resolve-swizzles` computes the permuted ones.
    """

    name = "loop.swizzle"

    def get_affine_map(self) -> AffineMap:
        raise NotImplementedError("a swizzle is no affine map: run loop-resolve-swizzles first")

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.data.chunk}, {self.data.rows}, {self.data.phases}")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Swizzle:
        position = parser.pos
        sizes = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parser.parse_integer)
        if len(sizes) != 3:
            parser.raise_error(f"a swizzle of {len(sizes)} numbers: expected chunk, rows, phases", position)
        return Swizzle(*sizes)


@irdl_attr_definition
class CountAttr(Data[int]):
    """A number of any size that is not negative: as one of MLIR's integers it would have to fit 64 bits.

    ```mlir
    #loop.count<1048576>
    ```
    """

    name = "loop.count"

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_int(self.data)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> int:
        with parser.in_angle_brackets():
            return parser.parse_integer(allow_boolean=False, allow_negative=False)


COUNT = BaseAttr(CountAttr) | BaseAttr(IntAttr)
"""A count, or as earlier versions wrote it, `#builtin.int<1048576>`, which MLIR does not read."""


@lru_cache(4096)
def buffer_type(
    shape: tuple[int, ...], element: Attribute, space: Space | None = None, swizzle: Swizzle | None = None
) -> MemRefType:
    """A row-major buffer, its rows' chunks permuted by a swizzle; global without a space."""
    layout = NoneAttr() if swizzle is None else SwizzleAttr(swizzle)
    if space is None:
        return MemRefType(element, shape, layout)
    return MemRefType(element, shape, layout, SpaceAttr(space))


def zeros(type: VectorType) -> DenseIntOrFPElementsAttr:
    """The value of a vector of numbers that are all 0."""
    if isinstance(type.element_type, IntegerType):
        return DenseIntOrFPElementsAttr.from_list(cast("VectorType[IntegerType]", type), [0])
    return DenseIntOrFPElementsAttr.from_list(cast("VectorType[AnyFloat]", type), [0.0])


def type_of(buffer: SSAValue) -> MemRefType:
    """The type of a buffer."""
    assert isinstance(buffer.type, MemRefType), "an access's buffer is verified"
    return buffer.type


def swizzle_of(type: MemRefType) -> Swizzle | None:
    """The swizzle of a buffer's rows, None for row-major ones."""
    return type.layout.data if isinstance(type.layout, SwizzleAttr) else None


@lru_cache(4096)
def memref_of(type: TensorType) -> MemRefType:
    """The global buffer that holds a tensor."""
    return MemRefType(type.get_element_type(), type.get_shape())
