"""Products of a warpgroup, asynchronous, of tiles in shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    Float8E4M3FNType,
    Float8E5M2Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    Signedness,
    UnitAttr,
    VectorType,
    bf16,
    f16,
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
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent, OrdersMemory
from treadle.dialects.hopper.attributes import AnyMemRef, check_shared, element_of, is_private, memref_type
from treadle.dialects.hopper.barrier import number_of
from treadle.dialects.syntax import MEMREF

ui8 = IntegerType(8, Signedness.UNSIGNED)
f8e4m3fn, f8e5m2 = Float8E4M3FNType(), Float8E5M2Type()
ROWS, TERM_BYTES = 64, 32
"""Rows of a warpgroup's product; bytes along the terms."""
COLUMNS, MOST_COLUMNS = 8, 256
FRAGMENT = (4, 2)
"""Of A in registers, per thread: registers, and elements of 16 bits in each."""
MATRIX_ROWS = 8
"""Rows of a swizzled row's length that make a core matrix."""
ELEMENT_BYTES: Mapping[Attribute, int] = {f16: 2, bf16: 2, f32: 4, f8e4m3fn: 1, f8e5m2: 1, i8: 1, ui8: 1}
SUM: Mapping[Attribute, Attribute] = {f16: f32, bf16: f32, f32: f32, f8e4m3fn: f32, f8e5m2: f32, i8: i32, ui8: i32}
"""The type of sums, by the operands'; f32 operands are read as tf32."""
_MIXED = ({f8e4m3fn, f8e5m2}, {i8, ui8})
"""Types of which A may have one and B another."""


@dataclass(frozen=True)
class Descriptor:
    """The layout of an operand in shared memory, as a product reads it, in bytes.

    leading: from one part of the span's length to the next, of an operand whose rows run across the terms
    stride: from 8 rows to the next 8; swizzle: the span of rows
    advance: of the start, by the extent along the terms of one product
    """

    leading: int
    stride: int
    swizzle: int
    advance: int


def descriptor(type: AnyMemRef, *, along_k: bool) -> Descriptor | None:
    """The layout of a tile as an operand: `[.., rows, row]` whose rows run along the terms, or
    `[.., parts, terms, row]` whose rows run across them; None for a tile whose rows are no 32, 64 or 128 bytes."""
    shape, size = type.get_shape(), ELEMENT_BYTES[element_of(type)]
    span = shape[-1] * size
    if span not in (32, 64, 128):
        return None
    if along_k:
        return Descriptor(16, MATRIX_ROWS * span, span, TERM_BYTES)
    terms = TERM_BYTES // size
    return Descriptor(shape[-2] * span, MATRIX_ROWS * span, span, terms * span)


class ProductEffect(MemoryEffect):
    """Reads the tiles that are operands, and reads and writes sums."""

    @classmethod
    def get_effects(cls, op: object) -> set[EffectInstance]:
        assert isinstance(op, WgmmaOp | WgmmaRegistersOp)
        read, write = MemoryEffectKind.READ, MemoryEffectKind.WRITE
        sums = {EffectInstance(read, op.acc), EffectInstance(write, op.acc)}
        tiles = (op.a, op.b) if isinstance(op, WgmmaOp) else (op.b,)
        return sums | {EffectInstance(read, tile) for tile in tiles}


def columns_of(acc: SSAValue) -> int:
    """Columns of a product, by its sums."""
    *_, pairs, two = memref_type(acc).get_shape()
    return pairs * two * COLUMNS


def check_sums(acc: SSAValue, indices: int, sum: Attribute) -> None:
    """VerifyException for anything but a product's sums of a type, from so many indices on."""
    type = memref_type(acc)
    if not is_private(type) or element_of(type) != VectorType(sum, [2, 2]) or type.get_num_dims() < 2:
        raise VerifyException(f"sums in '{type}', expected vector<2x2x{sum}> in registers")
    if indices != type.get_num_dims() - 2:
        raise VerifyException(f"'{type}' needs {type.get_num_dims() - 2} indices, got {indices}")
    if type.get_shape()[-1] != 2 or not COLUMNS <= columns_of(acc) <= MOST_COLUMNS:
        raise VerifyException(f"sums in '{type}', expected [.., columns / 16, 2] of at most {MOST_COLUMNS} columns")


def check_tile(name: str, tile: SSAValue, indices: int, *, along_k: bool) -> None:
    """VerifyException for a tile that cannot be an operand, or is read from another number of indices on."""
    type = check_shared(tile, indices)
    if not along_k and ELEMENT_BYTES[element_of(type)] != 2:
        raise VerifyException(f"{name} of {element_of(type)} must lie along the terms")
    if type.get_num_dims() < (2 if along_k else 3) or descriptor(type, along_k=along_k) is None:
        raise VerifyException(f"{name} is '{type}', expected rows of 32, 64 or 128 bytes")


def reach_of(tile: SSAValue, own: int, *, along_k: bool) -> int:
    """Elements of a tile from the first that a product reads to the last; own: rows of A, or columns of B."""
    type = memref_type(tile)
    *_, height, width = type.get_shape()
    terms = TERM_BYTES // ELEMENT_BYTES[element_of(type)]
    parts = 1 if along_k else -(-own // width)
    last_row, last = (own - 1, terms) if along_k else (terms - 1, min(own, width))
    return (parts - 1) * height * width + last_row * width + last


@irdl_op_definition
class WgmmaOp(IRDLOperation):
    """
    Adds the product of 64 rows of A, from an element of a tile on, and N columns of B to sums in registers, over 32
    bytes along the terms; where `keep` is given and false, the product takes the place of the sums.

    ```mlir
    hopper.wgmma %a[%stage, %row, %k], %b[%stage, %part, %k, %c0] across, %acc[%r] keep %more
      : memref<4x128x64xf16, #loop.space<shared>>, memref<4x4x64x64xf16, #loop.space<shared>>,
        memref<1x16x2xvector<2x2xf32>, #loop.space<register>>
    ```

    A's tile ends with the dimensions rows, terms; B's with columns, terms or, with `across`, with parts of the columns,
    terms, columns of a part. Rows are of 32, 64 or 128 bytes, and swizzled by as many. Of 16 columns a thread has two
    `vector<2x2xf32>`, as of `loop.mma`: warp w of the group has rows 16 w to 16 w + 15; `%acc` is [.., N / 16, 2] of
    them, its indices those of the dimensions before.

    Operands are read, and sums written, until a `hopper.wgmma_wait` has covered the product's group: in between nobody
    else touches them. Of the two types of floats of 8 bits, and of signed and unsigned bytes, A may have one and B the
    other. Sums of floats of 8 bits keep about 14 bits of the largest term of a product, of which the sum so far is one.

    Rejected: tiles that are not shared, elements other than f16, bf16, f32 (multiplied as tf32), f8E4M3FN, f8E5M2, i8
    and ui8, `across` of others than 16 bits, N that is no multiple of 16 from 16 to 256, sums of another type.
    """

    name = "hopper.wgmma"

    a = operand_def(MEMREF)
    a_indices = var_operand_def(IndexType)
    b = operand_def(MEMREF)
    b_indices = var_operand_def(IndexType)
    a_across = opt_prop_def(UnitAttr)
    b_across = opt_prop_def(UnitAttr)
    acc = operand_def(MEMREF)
    acc_indices = var_operand_def(IndexType)
    keep = opt_operand_def(i1)

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    traits = traits_def(ProductEffect(), Convergent())
    assembly_format = (
        "$a `[` $a_indices `]` (`across` $a_across^)? `,` $b `[` $b_indices `]` (`across` $b_across^)? `,` "
        "$acc `[` $acc_indices `]` (`keep` $keep^)? attr-dict `:` type($a) `,` type($b) `,` type($acc)"
    )

    def __init__(
        self,
        a: tuple[SSAValue, Sequence[SSAValue]],
        b: tuple[SSAValue, Sequence[SSAValue]],
        acc: tuple[SSAValue, Sequence[SSAValue]],
        keep: SSAValue | None = None,
        *,
        across: tuple[bool, bool] = (False, False),
    ):
        properties = {
            name: UnitAttr() if is_across else None
            for name, is_across in zip(("a_across", "b_across"), across, strict=True)
        }
        super().__init__(operands=[*a, *b, *acc, keep], properties=properties)

    @property
    def columns(self) -> int:
        """Of the product."""
        return columns_of(self.acc)

    @property
    def operands_along_k(self) -> tuple[bool, bool]:
        """Of A and of B, whether rows run along the terms."""
        return self.a_across is None, self.b_across is None

    @property
    def elements(self) -> tuple[Attribute, Attribute]:
        """Of A and of B."""
        return element_of(memref_type(self.a)), element_of(memref_type(self.b))

    @property
    def terms(self) -> int:
        """Of one product."""
        return TERM_BYTES // ELEMENT_BYTES[self.elements[0]]

    @property
    def reach(self) -> tuple[int, int]:
        """Elements of A and of B from the first that the product reads to the last."""
        of_a, of_b = self.operands_along_k
        return reach_of(self.a, ROWS, along_k=of_a), reach_of(self.b, self.columns, along_k=of_b)

    def verify_(self) -> None:
        left, right = self.elements
        is_pair = left == right or any({left, right} <= mixed for mixed in _MIXED)
        if left not in SUM or right not in SUM or not is_pair:
            raise VerifyException(
                f"a product of {left} and {right}, expected f16, bf16, f32, floats of 8 bits or bytes of both"
            )
        of_a, of_b = self.operands_along_k
        check_tile("A", self.a, len(self.a_indices), along_k=of_a)
        check_tile("B", self.b, len(self.b_indices), along_k=of_b)
        check_sums(self.acc, len(self.acc_indices), SUM[left])


@irdl_op_definition
class WgmmaRegistersOp(IRDLOperation):
    """
    The same with A in registers: what a thread holds of 64 rows and 16 terms, as of `loop.mma`, warp w of the group the
    rows 16 w to 16 w + 15. Of sums, 16 columns are such a fragment as they lie.

    ```mlir
    hopper.wgmma_registers %p, %v[%stage, %c0, %k, %c0] across, %acc[%r] keep %more
      : vector<4x2xf16>, memref<2x2x128x64xf16, #loop.space<shared>>,
        memref<1x8x2xvector<2x2xf32>, #loop.space<register>>
    ```

    Rejected: A that is no `vector<4x2xf16>` or `vector<4x2xbf16>`, B of another type; and of B and the sums, what
    `hopper.wgmma` rejects.
    """

    name = "hopper.wgmma_registers"

    a = operand_def(VectorType)
    b = operand_def(MEMREF)
    b_indices = var_operand_def(IndexType)
    b_across = opt_prop_def(UnitAttr)
    acc = operand_def(MEMREF)
    acc_indices = var_operand_def(IndexType)
    keep = opt_operand_def(i1)

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    traits = traits_def(ProductEffect(), Convergent())
    assembly_format = (
        "$a `,` $b `[` $b_indices `]` (`across` $b_across^)? `,` $acc `[` $acc_indices `]` (`keep` $keep^)? attr-dict "
        "`:` type($a) `,` type($b) `,` type($acc)"
    )

    def __init__(
        self,
        a: SSAValue,
        b: tuple[SSAValue, Sequence[SSAValue]],
        acc: tuple[SSAValue, Sequence[SSAValue]],
        keep: SSAValue | None = None,
        *,
        across: bool = False,
    ):
        super().__init__(operands=[a, *b, *acc, keep], properties={"b_across": UnitAttr() if across else None})

    @property
    def columns(self) -> int:
        """Of the product."""
        return columns_of(self.acc)

    @property
    def along_k(self) -> bool:
        """Whether B's rows run along the terms."""
        return self.b_across is None

    @property
    def element(self) -> Attribute:
        """Of both operands."""
        return element_of(memref_type(self.b))

    @property
    def terms(self) -> int:
        """Of one product."""
        return TERM_BYTES // ELEMENT_BYTES[self.element]

    @property
    def reach(self) -> int:
        """Elements of B from the first that the product reads to the last."""
        return reach_of(self.b, self.columns, along_k=self.along_k)

    def verify_(self) -> None:
        if self.a.type not in (VectorType(f16, FRAGMENT), VectorType(bf16, FRAGMENT)):
            raise VerifyException(f"A is {self.a.type}, expected vector<4x2xf16> or vector<4x2xbf16>")
        type = check_shared(self.b, len(self.b_indices))
        assert isinstance(self.a.type, VectorType)
        if element_of(type) != self.a.type.element_type:
            raise VerifyException(f"a product of {self.a.type.element_type} and {element_of(type)}")
        check_tile("B", self.b, len(self.b_indices), along_k=self.along_k)
        check_sums(self.acc, len(self.acc_indices), f32)


@irdl_op_definition
class WgmmaSumsOp(IRDLOperation):
    """
    What follows and reads the sums of products stays behind what is before: a wait, which says nothing of registers.

    ```mlir
    hopper.wgmma_wait 0
    hopper.wgmma_sums %acc[%r] : memref<1x16x2xvector<2x2xf32>, #loop.space<register>>
    ```

    Rejected: what are no sums of `hopper.wgmma`.
    """

    name = "hopper.wgmma_sums"

    acc = operand_def(MEMREF)
    acc_indices = var_operand_def(IndexType)

    traits = traits_def(OrdersMemory())
    assembly_format = "$acc `[` $acc_indices `]` attr-dict `:` type($acc)"

    def __init__(self, acc: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[acc, indices])

    @property
    def columns(self) -> int:
        """Of the product."""
        return columns_of(self.acc)

    def verify_(self) -> None:
        element = element_of(memref_type(self.acc))
        sum = i32 if element == VectorType(i32, [2, 2]) else f32
        check_sums(self.acc, len(self.acc_indices), sum)


@irdl_op_definition
class BeforeWaitOp(IRDLOperation):
    """
    A wait for products that follows begins when a number has been computed, which is not negative: the assembler moves
    waits above arithmetic that does not need them, and the arithmetic would no longer run beside the products.

    ```mlir
    hopper.before_wait %total : f32
    hopper.wgmma_wait 0
    ```
    """

    name = "hopper.before_wait"

    value = operand_def(f32)

    traits = traits_def(OrdersMemory())
    assembly_format = "$value attr-dict `:` type($value)"

    def __init__(self, value: SSAValue):
        super().__init__(operands=[value])


@irdl_op_definition
class WgmmaFenceOp(IRDLOperation):
    """
    Orders what threads did to registers before the products of their warpgroup that follow.

    ```mlir
    hopper.wgmma_fence
    ```
    """

    name = "hopper.wgmma_fence"

    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"


@irdl_op_definition
class WgmmaCommitOp(IRDLOperation):
    """
    Ends a group: the products that the warpgroup started since the last commit belong to it.

    ```mlir
    hopper.wgmma_commit
    ```
    """

    name = "hopper.wgmma_commit"

    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "attr-dict"


@irdl_op_definition
class WgmmaWaitOp(IRDLOperation):
    """
    Waits until at most `pending` of the warpgroup's newest groups are under way.

    ```mlir
    hopper.wgmma_wait 1
    ```

    Rejected: a negative number.
    """

    name = "hopper.wgmma_wait"

    pending = prop_def(IntegerAttr.constr(i64))

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(OrdersMemory(), Convergent())
    assembly_format = "$pending attr-dict"

    def __init__(self, pending: int):
        super().__init__(properties={"pending": IntegerAttr(pending, i64)})

    def verify_(self) -> None:
        if number_of(self.pending) < 0:
            raise VerifyException(f"cannot leave {number_of(self.pending)} groups under way, expected 0 or more")
