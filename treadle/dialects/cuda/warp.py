"""Operations of the 32 lanes of a warp together: shuffles and tensor core products.

All lanes of the warp must reach these ops. They read and write no memory of their own accord
(`cuda.ldmatrix` reads), so an unused one may be erased; but none is speculatable, since hoisting it out of
a condition or sinking it into one would change the lanes that take part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    Signedness,
    UnitAttr,
    VectorType,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.cuda.attributes import (
    AnyMemRef,
    MmaShape,
    MmaShapeAttr,
    ShuffleMode,
    ShuffleModeAttr,
    Space,
    row_misalignment,
    space_of,
)
from treadle.dialects.effects import Convergent

WARP_SIZE = 32

BYTES = (i8, IntegerType(8, Signedness.UNSIGNED))
"""Elements of one byte, signed and unsigned."""

Fragment = VectorType[Any]
"""A lane's part of a matrix: registers x elements in a register."""


@irdl_op_definition
class ShuffleOp(IRDLOperation):
    """
    The value of another lane of the warp: `down` reads from lane `l + n`, `up` from `l - n`, `xor`
    from `l ^ n` and `idx` from `n`, where `l` is the reader and `n` the operand. A lane past either end
    reads itself.

    ```mlir
    %other = cuda.shuffle xor %sum, %n : f32
    ```

    Rejected: a type other than f32, f64 and i32; a constant lane that is not within 0 and 31.
    """

    name = "cuda.shuffle"

    T: ClassVar = VarConstraint("T", AnyAttr())

    mode = prop_def(ShuffleModeAttr)
    value = operand_def(T)
    lane = operand_def(IndexType())
    result = result_def(T)

    assembly_format = "$mode $value `,` $lane attr-dict `:` type($value)"

    traits = traits_def(NoMemoryEffect(), Convergent())

    def __init__(self, mode: ShuffleMode, value: SSAValue | Operation, lane: SSAValue | Operation) -> None:
        value = SSAValue.get(value)
        super().__init__(operands=[value, lane], properties={"mode": ShuffleModeAttr(mode)}, result_types=[value.type])

    def verify_(self) -> None:
        if self.value.type not in (f32, f64, i32):
            raise VerifyException(f"cannot shuffle {self.value.type}, only f32, f64 and i32")
        constant = self.lane.owner
        if not isinstance(constant, ConstantOp) or not isinstance(constant.value, IntegerAttr):
            return
        lane = constant.value.value.data
        if not 0 <= lane < WARP_SIZE:
            raise VerifyException(f"lane {lane} is not within 0 and {WARP_SIZE - 1}")


@irdl_op_definition
class LdmatrixOp(IRDLOperation):
    """
    Loads 1, 2 or 4 matrices of 8 rows of 16 bytes from shared memory, in the layout that `cuda.mma` wants.

    Of elements of 16 bits a matrix is 8x8. Lane `8m + r` passes the address of row `r` of matrix `m`. Register
    `m` of lane `l` then holds elements `2(l % 4)` and `2(l % 4) + 1` of row `l / 4` of matrix `m`, or with
    `transpose` of column `l / 4`.

    ```mlir
    %a = cuda.ldmatrix %tile[%row, %col] : memref<128x40xf16, #cuda.space<shared>> -> vector<4x2xf16>
    %b = cuda.ldmatrix transpose %tile[%row, %col] : memref<32x72xbf16, #cuda.space<shared>>
      -> vector<2x2xbf16>
    ```

    Four registers may be two times two, `vector<2x2x2x..>`: those of two operands B. Matrices of f32 have rows of
    four elements, and registers of one, `vector<4x1xf32>`; those of bytes have rows of 16, and registers of four,
    `vector<4x4xi8>`.

    Rejected: a buffer that is not shared; elements other than f16, bf16, f32, i8 and ui8; `transpose` of f32, and
    of bytes; a result other than `vector<Nx2x..>` (of f32 `vector<Nx1xf32>`, of bytes `vector<Nx4x..>`) with N = 1,
    2, 4 or 2x2; a wrong number of indices; rows that are not aligned to 16 bytes.
    """

    name = "cuda.ldmatrix"

    source = operand_def(MemRefType.constr())
    indices = var_operand_def(IndexType())
    transpose = opt_prop_def(UnitAttr)
    fragment = result_def(VectorType.constr())

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "(`transpose` $transpose^)? $source `[` $indices `]` attr-dict `:` type($source) `->` type($fragment)"
    )

    traits = traits_def(MemoryReadEffect(), Convergent())

    def __init__(
        self,
        source: SSAValue | Operation,
        indices: Sequence[SSAValue | Operation],
        matrices: int | Fragment,
        *,
        transpose: bool = False,
    ) -> None:
        source = SSAValue.get(source, type=MemRefType)
        element = source.type.element_type
        fragment = VectorType(element, [matrices, _packed(element)]) if isinstance(matrices, int) else matrices
        super().__init__(
            operands=[source, indices],
            properties={"transpose": UnitAttr() if transpose else None},
            result_types=[fragment],
        )

    @property
    def matrices(self) -> int:
        """How many matrices are loaded."""
        return math.prod(cast(Fragment, self.fragment.type).get_shape()[:-1])

    def verify_(self) -> None:
        source, fragment = cast(AnyMemRef, self.source.type), cast(Fragment, self.fragment.type)
        if space_of(source) is not Space.SHARED:
            raise VerifyException(f"source '{source}' is not #cuda.space<shared>")
        element = source.element_type
        if not isinstance(element, Float16Type | BFloat16Type | Float32Type) and element not in BYTES:
            raise VerifyException(f"elements of type {element} are none of f16, bf16, f32, i8, ui8")
        packed = _packed(element)
        if packed != 2 and self.transpose is not None:
            raise VerifyException(f"matrices of {element} cannot be transposed, only those of 16 bits")
        accepted = [VectorType(source.element_type, [*shape, packed]) for shape in ([1], [2], [4], [2, 2])]
        if fragment not in accepted:
            raise VerifyException(f"result {fragment} is none of {', '.join(map(str, accepted))}")
        if len(self.indices) != source.get_num_dims():
            raise VerifyException(f"'{source}' needs {source.get_num_dims()} indices, got {len(self.indices)}")
        if (reason := row_misalignment(source, 16)) is not None:
            raise VerifyException(reason)


@dataclass(frozen=True)
class MmaFragments:
    """A lane's parts of the operands of one tensor core product."""

    a: Fragment
    b: Fragment
    c: Fragment


def _packed(element: Attribute) -> int:
    """Elements in a register of 4 bytes."""
    return 1 if element == f32 else 4 if element in BYTES else 2


def _fragments(a: Attribute, b: Attribute, c: Attribute) -> MmaFragments:
    return MmaFragments(VectorType(a, [4, _packed(a)]), VectorType(b, [2, _packed(b)]), VectorType(c, [2, 2]))


# PTX ISA 9.0, section "Warp Level Matrix Multiply-Accumulate Instructions": fragments of mma.sync.
MMA: Mapping[MmaShape, tuple[MmaFragments, ...]] = {
    MmaShape.M16N8K16: (_fragments(f16, f16, f32), _fragments(bf16, bf16, f32)),
    MmaShape.M16N8K8: (_fragments(f32, f32, f32),),
    MmaShape.M16N8K32: tuple(_fragments(a, b, i32) for a in BYTES for b in BYTES),
}
"""The products that the tensor cores offer, by shape. f32 operands are read as tf32; bytes of both signs may meet."""


@irdl_op_definition
class RoundTf32Op(IRDLOperation):
    """
    The elements of a fragment, rounded to the 10 bits of mantissa that `cuda.mma m16n8k8` reads.

    ```mlir
    %r = cuda.round_tf32 %a : vector<4x1xf32>
    ```

    Rejected: anything but a vector of f32.
    """

    name = "cuda.round_tf32"

    T: ClassVar = VarConstraint("T", VectorType.constr(f32))

    value = operand_def(T)
    result = result_def(T)

    assembly_format = "$value attr-dict `:` type($value)"

    traits = traits_def(Pure())

    def __init__(self, value: SSAValue | Operation) -> None:
        value = SSAValue.get(value)
        super().__init__(operands=[value], result_types=[value.type])


@irdl_op_definition
class MmaOp(IRDLOperation):
    """
    A tensor core product `A x B + C` of the warp, accumulated in f32, or of bytes in i32, which wraps.

    Lane `l` holds, with `g = l / 4` and `t = l % 4`: of C (and the result) rows `g` and `g + 8`, columns
    `2t` and `2t + 1`. For `m16n8k16`: of A rows `g` and `g + 8` (registers 0 and 1), columns `2t` and `2t +
    1`, then the same rows eight columns on (registers 2 and 3); of B the same with rows and columns
    exchanged, and one column `g`. For `m16n8k8`, which multiplies tf32: of A rows `g` and `g + 8` of column
    `t`, then of column `t + 4`; of B rows `t` and `t + 4` of column `g`. The operands are f32 whose lower
    13 bits are ignored. For `m16n8k32`, which multiplies bytes, signed or not: of A rows `g` and `g + 8` (registers 0
    and 1), columns `4t` to `4t + 3`, then the same rows sixteen columns on; of B rows `4t` to `4t + 3` of column `g`,
    then sixteen rows on.

    ```mlir
    %d = cuda.mma m16n8k16 %a, %b, %c : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
    %e = cuda.mma m16n8k8 %x, %y, %c : vector<4x1xf32>, vector<2x1xf32>, vector<2x2xf32>
    %f = cuda.mma m16n8k32 %u, %v, %n : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>
    ```

    Rejected: fragments other than those of the shape: f16 or bf16 for `m16n8k16`, f32 for `m16n8k8`, i8 and ui8 with
    sums of i32 for `m16n8k32`.
    """

    name = "cuda.mma"

    T: ClassVar = VarConstraint("T", VectorType.constr())

    shape = prop_def(MmaShapeAttr)
    a = operand_def(VectorType.constr())
    b = operand_def(VectorType.constr())
    c = operand_def(T)
    result = result_def(T)

    assembly_format = "$shape $a `,` $b `,` $c attr-dict `:` type($a) `,` type($b) `,` type($c)"

    traits = traits_def(NoMemoryEffect(), Convergent())

    def __init__(
        self, shape: MmaShape, a: SSAValue | Operation, b: SSAValue | Operation, c: SSAValue | Operation
    ) -> None:
        c = SSAValue.get(c)
        super().__init__(operands=[a, b, c], properties={"shape": MmaShapeAttr(shape)}, result_types=[c.type])

    def verify_(self) -> None:
        accepted = MMA[self.shape.data]
        given = (self.a.type, self.b.type, self.c.type)
        if given in [(each.a, each.b, each.c) for each in accepted]:
            return
        choices = " or ".join(f"({each.a}, {each.b}, {each.c})" for each in accepted)
        raise VerifyException(f"{self.shape.data} of ({', '.join(map(str, given))}), expected {choices}")
