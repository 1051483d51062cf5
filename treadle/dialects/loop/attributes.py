"""Memory spaces and layouts of a kernel's own buffers."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
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
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum

from treadle.dialects.loop.swizzle import Swizzle


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


def memref_of(type: TensorType) -> MemRefType:
    """The global buffer that holds a tensor."""
    return MemRefType(type.get_element_type(), type.get_shape())
