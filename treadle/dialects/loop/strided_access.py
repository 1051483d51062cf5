"""Vector accesses that upstream's `vector` lacks: with constant strides, under masks of consecutive lanes."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, VectorType, i1, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

index = IndexType()


def parse_vector(parser: Parser) -> VectorType:
    """A type that must be a vector's."""
    position = parser.pos
    type = parser.parse_type()
    if not isinstance(type, VectorType):
        parser.raise_error(f"expected a vector, got {type}", position)
    return type


def mask_of(type: VectorType) -> VectorType:
    """The mask of a vector's lanes."""
    return VectorType(i1, type.get_shape())


@irdl_op_definition
class LaneMaskOp(IRDLOperation):
    """The lanes from `lo`, inclusive, to `hi`, exclusive; bounds outside the vector are clamped.

    ```mlir
    %m = loop.lane_mask %lo, %hi : vector<16xi1>
    ```
    Rejected: a result that is no vector of i1 of rank 1.
    """

    name = "loop.lane_mask"
    lo = operand_def(IndexType)
    hi = operand_def(IndexType)
    mask = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "$lo `,` $hi attr-dict `:` type($mask)"

    def __init__(self, lo: SSAValue, hi: SSAValue, lanes: int):
        super().__init__(operands=[lo, hi], result_types=[VectorType(i1, [lanes])])

    def verify_(self) -> None:
        type = self.mask.type
        assert isinstance(type, VectorType)
        if type.get_element_type() != i1 or type.get_num_dims() != 1:
            raise VerifyException(f"a mask is a vector of i1 of rank 1, not {type}")


class _StridedAccess(IRDLOperation):
    """The common verification of strided accesses."""

    def _check(self, buffer: SSAValue, indices: Sequence[SSAValue], vector: VectorType, mask: SSAValue | None) -> None:
        assert isinstance(buffer.type, MemRefType)
        if len(indices) != buffer.type.get_num_dims():
            raise VerifyException(f"{len(indices)} indices into {buffer.type}: expected {buffer.type.get_num_dims()}")
        if vector.get_element_type() != buffer.type.get_element_type():
            raise VerifyException(f"{vector} and {buffer.type} differ in element type")
        if mask is not None and mask.type != mask_of(vector):
            raise VerifyException(f"the mask of {vector} is {mask_of(vector)}, not {mask.type}")


def _print_address(printer: Printer, buffer: SSAValue, indices: Sequence[SSAValue], stride: int) -> None:
    printer.print_ssa_value(buffer)
    with printer.in_square_brackets():
        printer.print_list(indices, printer.print_ssa_value)
    printer.print_string(f" by {stride}")


@irdl_op_definition
class StridedLoadOp(_StridedAccess):
    """A vector of elements `stride` apart along the last dimension; lanes that are masked off are not read.

    ```mlir
    %v = loop.strided_load %A[%i] by 2 where %m else %z : memref<64xf32>, vector<16xf32>
    ```
    Rejected: a number of indices that is not the rank, other element types, a mask of another length.
    """

    name = "loop.strided_load"
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    mask = opt_operand_def(VectorType)
    otherwise = opt_operand_def(VectorType)
    stride = prop_def(IntegerAttr)
    result = result_def(VectorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    def __init__(
        self,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        stride: int,
        type: VectorType,
        mask: SSAValue | None = None,
        otherwise: SSAValue | None = None,
    ):
        super().__init__(
            operands=[buffer, indices, mask, otherwise],
            properties={"stride": IntegerAttr(stride, i64)},
            result_types=[type],
        )

    def verify_(self) -> None:
        assert isinstance(self.result.type, VectorType)
        self._check(self.buffer, self.indices, self.result.type, self.mask)
        if (self.mask is None) != (self.otherwise is None):
            raise VerifyException("'where' and 'else' come together")
        if self.otherwise is not None and self.otherwise.type != self.result.type:
            raise VerifyException(f"'else' gives {self.otherwise.type}: expected {self.result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_address(printer, self.buffer, self.indices, self.stride.value.data)
        if self.mask is not None and self.otherwise is not None:
            printer.print_string(" where ")
            printer.print_ssa_value(self.mask)
            printer.print_string(" else ")
            printer.print_ssa_value(self.otherwise)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list((self.buffer.type, self.result.type), printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> StridedLoadOp:
        buffer = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_operand(index))
        parser.parse_keyword("by")
        stride = parser.parse_integer(allow_boolean=False)
        mask = otherwise = None
        if parser.parse_optional_keyword("where") is not None:
            mask = parser.parse_unresolved_operand()
            parser.parse_keyword("else")
            otherwise = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        memory = parser.parse_type()
        parser.parse_punctuation(",")
        type = parse_vector(parser)
        op = cls(
            parser.resolve_operand(buffer, memory),
            indices,
            stride,
            type,
            None if mask is None else parser.resolve_operand(mask, mask_of(type)),
            None if otherwise is None else parser.resolve_operand(otherwise, type),
        )
        op.attributes |= attributes
        return op


@irdl_op_definition
class StridedStoreOp(_StridedAccess):
    """Writes a vector to elements `stride` apart along the last dimension; lanes that are masked off are not written.

    ```mlir
    loop.strided_store %v, %A[%i] by 196 where %m : memref<6272xf32>, vector<16xf32>
    ```
    Rejected: as for `loop.strided_load`.
    """

    name = "loop.strided_store"
    value = operand_def(VectorType)
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    mask = opt_operand_def(VectorType)
    stride = prop_def(IntegerAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryWriteEffect())

    def __init__(
        self,
        value: SSAValue,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        stride: int,
        mask: SSAValue | None = None,
    ):
        super().__init__(operands=[value, buffer, indices, mask], properties={"stride": IntegerAttr(stride, i64)})

    def verify_(self) -> None:
        assert isinstance(self.value.type, VectorType)
        self._check(self.buffer, self.indices, self.value.type, self.mask)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(", ")
        _print_address(printer, self.buffer, self.indices, self.stride.value.data)
        if self.mask is not None:
            printer.print_string(" where ")
            printer.print_ssa_value(self.mask)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list((self.buffer.type, self.value.type), printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> StridedStoreOp:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        buffer = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_operand(index))
        parser.parse_keyword("by")
        stride = parser.parse_integer(allow_boolean=False)
        mask = parser.parse_unresolved_operand() if parser.parse_optional_keyword("where") else None
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        memory = parser.parse_type()
        parser.parse_punctuation(",")
        type = parse_vector(parser)
        op = cls(
            parser.resolve_operand(value, type),
            parser.resolve_operand(buffer, memory),
            indices,
            stride,
            None if mask is None else parser.resolve_operand(mask, mask_of(type)),
        )
        op.attributes |= attributes
        return op
