"""Memory spaces of a kernel's own buffers."""

from __future__ import annotations

from xdsl.dialects.builtin import MemRefType, TensorType
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum


class Space(StrEnum):
    """Where a buffer of a kernel lives."""

    REGISTER = "register"
    SHARED = "shared"


@irdl_attr_definition
class SpaceAttr(EnumAttribute[Space]):
    """The memory space of a buffer that a kernel allocates: private to a thread, or shared by its block.

    ```mlir
    memref<64x8xf32, #loop.space<shared>>
    ```
    Arguments of a kernel have no space: they are global.
    """

    name = "loop.space"

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            super().print_parameter(printer)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Space:
        with parser.in_angle_brackets():
            return super().parse_parameter(parser)


def buffer_type(shape: tuple[int, ...], element: Attribute, space: Space | None = None) -> MemRefType:
    """A row-major buffer; global without a space."""
    if space is None:
        return MemRefType(element, shape)
    return MemRefType(element, shape, memory_space=SpaceAttr(space))


def memref_of(type: TensorType) -> MemRefType:
    """The global buffer that holds a tensor."""
    return MemRefType(type.get_element_type(), type.get_shape())
