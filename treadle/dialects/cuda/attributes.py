"""Attributes of the `cuda` dialect: memory spaces, grid dimensions, shuffle modes and mma shapes."""

from __future__ import annotations

from enum import auto

from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum


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
