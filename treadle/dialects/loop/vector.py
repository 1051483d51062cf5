"""Operations on vectors that upstream lacks: comparisons, conversions, strided and masked accesses, transpositions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    VectorType,
    f32,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
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
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.loop.access import checked_buffer
from treadle.dialects.syntax import MEMREF, VECTOR, Clause, MaskType, SameType, Word, mask_of

# Comparisons and selections of vectors, lane by lane, which upstream's `arith` has for scalars only.

LANE_COMPARISONS = ("oeq", "ogt", "oge", "olt", "ole", "une")
"""The kinds of comparison: those of C's operators, so that a lane with NaN is true for `une` only."""


@irdl_op_definition
class LaneCompareOp(IRDLOperation):
    """The lanes in which two vectors of floats compare as the kind says.

    ```mlir
    %m = loop.lane_compare ogt, %x, %y : vector<16xf32>
    ```
    Rejected: a kind that is none of `LANE_COMPARISONS`, operands that are no floats or of two types, and a result
    that is not their mask.
    """

    name = "loop.lane_compare"
    kind = prop_def(StringAttr)
    lhs = operand_def(VECTOR)
    rhs = operand_def(VECTOR)
    mask = result_def(VECTOR)
    traits = traits_def(Pure())
    custom_directives = (Word, SameType, MaskType)
    assembly_format = (
        "custom<Word>($kind) `,` $lhs `,` $rhs attr-dict `:` type($lhs) "
        "custom<SameType>(ref(type($lhs)), type($rhs)) custom<MaskType>(ref(type($lhs)), type($mask))"
    )

    def __init__(self, kind: str, lhs: SSAValue, rhs: SSAValue):
        assert isinstance(lhs.type, VectorType)
        super().__init__(operands=[lhs, rhs], properties={"kind": StringAttr(kind)}, result_types=[mask_of(lhs.type)])

    @property
    def code(self) -> int:
        """The number that `arith.cmpf` has for the kind."""
        return CMPF_COMPARISON_OPERATIONS.index(self.kind.data)

    def verify_(self) -> None:
        type = self.lhs.type
        assert isinstance(type, VectorType)
        if self.kind.data not in LANE_COMPARISONS:
            raise VerifyException(
                f"'{self.kind.data}' compares no lanes: expected one of {', '.join(LANE_COMPARISONS)}"
            )
        if self.rhs.type != type or not isinstance(type.get_element_type(), AnyFloat):
            raise VerifyException(f"{type} and {self.rhs.type}: expected two vectors of floats of one type")
        if self.mask.type != mask_of(type):
            raise VerifyException(f"the mask of {type} is {mask_of(type)}, not {self.mask.type}")


@irdl_op_definition
class LaneSelectOp(IRDLOperation):
    """The first vector where the mask is on, the second elsewhere.

    ```mlir
    %z = loop.lane_select %m, %x, %y : vector<16xf32>
    ```
    Rejected: vectors of two types, a mask of another length.
    """

    name = "loop.lane_select"
    mask = operand_def(VECTOR)
    lhs = operand_def(VECTOR)
    rhs = operand_def(VECTOR)
    result = result_def(VECTOR)
    traits = traits_def(Pure())
    custom_directives = (SameType, MaskType)
    assembly_format = (
        "$mask `,` $lhs `,` $rhs attr-dict `:` type($result) custom<SameType>(ref(type($result)), type($lhs)) "
        "custom<SameType>(ref(type($result)), type($rhs)) custom<MaskType>(ref(type($result)), type($mask))"
    )

    def __init__(self, mask: SSAValue, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[mask, lhs, rhs], result_types=[lhs.type])

    def verify_(self) -> None:
        type = self.result.type
        assert isinstance(type, VectorType)
        if self.lhs.type != type or self.rhs.type != type:
            raise VerifyException(f"{self.lhs.type} or {self.rhs.type}: expected two of {type}")
        if self.mask.type != mask_of(type):
            raise VerifyException(f"the mask of {type} is {mask_of(type)}, not {self.mask.type}")


# Conversions of vectors, lane by lane, which upstream's `arith` has for scalars and between floats only.

LANE_CONVERSIONS: Mapping[Attribute, tuple[Attribute, ...]] = {
    i8: (i32, f32),
    ui8: (i32, f32),
    i32: (f32,),
    f32: (i8, ui8),
}
"""What numbers of a type become: wider integers, the nearest floats, the nearest bytes."""


@irdl_op_definition
class LaneConvertOp(IRDLOperation):
    """Each lane as a number of another type.

    ```mlir
    %y = loop.lane_convert %x : vector<16xui8> to vector<16xf32>
    ```
    Integers become what they are, or the nearest float; the whole part of a float becomes the nearest byte, 0 if it is
    NaN. Rejected: types that are not in `LANE_CONVERSIONS`, another number of lanes.
    """

    name = "loop.lane_convert"
    source = operand_def(VECTOR)
    result = result_def(VECTOR)
    traits = traits_def(Pure())
    assembly_format = "$source attr-dict `:` type($source) `to` type($result)"

    def __init__(self, source: SSAValue, result_type: VectorType):
        super().__init__(operands=[source], result_types=[result_type])

    def verify_(self) -> None:
        source, result = self.source.type, self.result.type
        assert isinstance(source, VectorType) and isinstance(result, VectorType)
        if source.get_shape() != result.get_shape():
            raise VerifyException(f"{source} as {result}: expected as many lanes")
        targets = LANE_CONVERSIONS.get(source.element_type, ())
        if result.element_type not in targets:
            wanted = " or ".join(map(str, targets)) or f"a vector of {', '.join(map(str, LANE_CONVERSIONS))}"
            raise VerifyException(f"{source} as {result}: expected {wanted}")


LOOKUP_ENTRIES = 16
"""Entries of a table that `loop.lane_lookup` reads."""


@irdl_op_definition
class LaneLookupOp(IRDLOperation):
    """The entry of a table of 16 floats that the low four bits of each lane name.

    ```mlir
    %y = loop.lane_lookup %x in [-8.0, -7.0, ...] : vector<16xi32> to vector<16xf32>
    ```
    Rejected: lanes that are not i32, a result that is not as many f32, another number of entries.
    """

    name = "loop.lane_lookup"
    source = operand_def(VECTOR)
    table = prop_def(DenseArrayBase.constr(f32))
    result = result_def(VECTOR)
    traits = traits_def(Pure())
    assembly_format = "$source `in` $table attr-dict `:` type($source) `to` type($result)"

    def __init__(self, source: SSAValue, table: Sequence[float]):
        assert isinstance(source.type, VectorType)
        type = VectorType(f32, source.type.get_shape())
        super().__init__(
            operands=[source], properties={"table": DenseArrayBase.from_list(f32, list(table))}, result_types=[type]
        )

    def entries(self) -> Sequence[float]:
        """The table."""
        return self.table.get_values()

    def verify_(self) -> None:
        source, result = self.source.type, self.result.type
        assert isinstance(source, VectorType) and isinstance(result, VectorType)
        if source.element_type != i32 or result != VectorType(f32, source.get_shape()):
            raise VerifyException(f"{source} to {result}: expected lanes of i32 to as many of f32")
        if len(self.table) != LOOKUP_ENTRIES:
            raise VerifyException(f"a table of {len(self.table)} entries: expected {LOOKUP_ENTRIES}")


# Vector accesses that upstream's `vector` lacks: with constant strides, under masks of consecutive lanes.


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
    mask = result_def(VECTOR)
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
        if vector.get_element_type() != checked_buffer(buffer, len(indices)).get_element_type():
            raise VerifyException(f"{vector} and {buffer.type} differ in element type")
        if mask is not None and mask.type != mask_of(vector):
            raise VerifyException(f"the mask of {vector} is {mask_of(vector)}, not {mask.type}")


@irdl_op_definition
class StridedLoadOp(_StridedAccess):
    """A vector of elements `stride` apart along the last dimension; lanes that are masked off are not read.

    ```mlir
    %v = loop.strided_load %A[%i] by 2 where %m else %z : memref<64xf32>, vector<16xf32>
    ```
    Rejected: a number of indices that is not the rank, other element types, a mask of another length.
    """

    name = "loop.strided_load"
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    mask = opt_operand_def(VECTOR)
    otherwise = opt_operand_def(VECTOR)
    stride = prop_def(IntegerAttr.constr(i64))
    result = result_def(VECTOR)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())
    custom_directives = (Clause, SameType, MaskType)
    assembly_format = (
        "$buffer `[` $indices `]` `by` $stride custom<Clause>(`where`, $mask) custom<Clause>(`else`, $otherwise) "
        "attr-dict `:` type($buffer) `,` type($result) custom<SameType>(ref(type($result)), type($otherwise)) "
        "custom<MaskType>(ref(type($result)), type($mask))"
    )

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


@irdl_op_definition
class StridedStoreOp(_StridedAccess):
    """Writes a vector to elements `stride` apart along the last dimension; lanes that are masked off are not written.

    ```mlir
    loop.strided_store %v, %A[%i] by 196 where %m : memref<6272xf32>, vector<16xf32>
    ```
    Rejected: as for `loop.strided_load`.
    """

    name = "loop.strided_store"
    value = operand_def(VECTOR)
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    mask = opt_operand_def(VECTOR)
    stride = prop_def(IntegerAttr.constr(i64))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryWriteEffect())
    custom_directives = (Clause, MaskType)
    assembly_format = (
        "$value `,` $buffer `[` $indices `]` `by` $stride custom<Clause>(`where`, $mask) attr-dict "
        "`:` type($buffer) `,` type($value) custom<MaskType>(ref(type($value)), type($mask))"
    )

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


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """Transposes as many vectors of a buffer as each has lanes, in place: lane j of the i-th one becomes lane i of the
    j-th one.

    ```mlir
    loop.transpose %tile[%c0] : memref<16xvector<16xf32>, #loop.space<register>>
    ```
    Rejected: a number of indices that is not the rank, elements that are no vectors of rank 1, and a last dimension
    that is shorter than the vectors.
    """

    name = "loop.transpose"
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$buffer `[` $indices `]` attr-dict `:` type($buffer)"

    def __init__(self, buffer: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[buffer, indices])

    @property
    def type(self) -> VectorType:
        """The type of the vectors."""
        assert isinstance(self.buffer.type, MemRefType)
        type = self.buffer.type.get_element_type()
        assert isinstance(type, VectorType)
        return type

    @property
    def lanes(self) -> int:
        """Vectors, and lanes of each."""
        return self.type.get_shape()[0]

    def verify_(self) -> None:
        buffer = checked_buffer(self.buffer, len(self.indices))
        element = buffer.get_element_type()
        if not isinstance(element, VectorType) or element.get_num_dims() != 1:
            raise VerifyException(f"expected vectors of rank 1, got {element}")
        if not buffer.get_shape() or buffer.get_shape()[-1] < element.get_shape()[0]:
            raise VerifyException(f"{buffer} has fewer vectors in its last dimension than {element} has lanes")
