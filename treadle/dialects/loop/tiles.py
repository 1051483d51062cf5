"""Operations of a warp's 32 lanes together, and products of tiles: on tensor cores, and on a CPU's matrix unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    UnitAttr,
    VectorType,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    EqAttrConstraint,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, MemoryReadEffect, NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.graph.linear import SUMS
from treadle.dialects.loop.access import checked_buffer
from treadle.dialects.loop.attributes import Space, SpaceAttr
from treadle.dialects.syntax import COUNT, MEMREF, VECTOR, Clause, Word

# Reductions of a warp without shared memory.

WARP = 32
"""Lanes of a warp: the threads `32 w` to `32 w + 31` of a block."""
SECTOR_BYTES = 32
"""The unit in which a GPU's global memory and its caches transfer data."""
BANKS, BANK_BYTES = 32, 4
"""The banks of shared memory, and the bytes that each gives at once."""
EXCHANGED: tuple[Attribute, ...] = (f32, f64, i32)
"""The types of values that lanes exchange."""
KINDS = ("add", "mul", "max", "min")


def lanes_fold(kind: str, type: Attribute) -> bool:
    """Whether the lanes of a warp can fold values of this type."""
    return kind in KINDS and type in EXCHANGED


@irdl_op_definition
class WarpReduceOp(IRDLOperation):
    """The fold of a value over each group of `width` consecutive lanes of a warp, which every lane of the group
    receives.

    ```mlir
    %s = loop.warp_reduce add %v over 32 : f32
    ```
    All lanes of the warp reach it together. The fold is a tree: lanes fold with those `width / 2` away, then with those
    `width / 4` away, down to their neighbours, and all of them get the same bits. Rejected: a kind other than add, mul,
    max, min; a width other than 2, 4, 8, 16, 32; a type other than f32, f64 and i32.
    """

    name = "loop.warp_reduce"
    T: ClassVar = VarConstraint("T", AnyAttr())
    kind = prop_def(StringAttr)
    width = prop_def(IntegerAttr.constr(i64))
    value = operand_def(T)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect(), Convergent())
    custom_directives = (Word,)
    assembly_format = "custom<Word>($kind) $value `over` $width attr-dict `:` type($value)"

    def __init__(self, kind: str, value: SSAValue, width: int):
        properties = {"kind": StringAttr(kind), "width": IntegerAttr(width, i64)}
        super().__init__(operands=[value], properties=properties, result_types=[value.type])

    @property
    def lanes(self) -> int:
        """Lanes of a group."""
        return self.width.value.data

    def verify_(self) -> None:
        if self.kind.data not in KINDS:
            raise VerifyException(f"unknown reduction {self.kind.data!r}: expected one of {', '.join(KINDS)}")
        if self.lanes not in (2, 4, 8, 16, 32):
            raise VerifyException(f"groups of {self.lanes} lanes: expected 2, 4, 8, 16 or 32")
        if self.value.type not in EXCHANGED:
            raise VerifyException(f"lanes exchange {', '.join(map(str, EXCHANGED))}, not {self.value.type}")


@irdl_op_definition
class ShuffleOp(IRDLOperation):
    """The value that another lane of the warp brings.

    ```mlir
    %x = loop.shuffle %v from %lane : f32
    ```
    All lanes of the warp reach it together; each names the lane whose value it receives, several may name the same.
    Rejected: a type other than f32, f64 and i32.
    """

    name = "loop.shuffle"
    T: ClassVar = VarConstraint("T", AnyAttr())
    value = operand_def(T)
    lane = operand_def(IndexType())
    result = result_def(T)
    traits = traits_def(NoMemoryEffect(), Convergent())
    assembly_format = "$value `from` $lane attr-dict `:` type($value)"

    def __init__(self, value: SSAValue, lane: SSAValue):
        super().__init__(operands=[value, lane], result_types=[value.type])

    def verify_(self) -> None:
        if self.value.type not in EXCHANGED:
            raise VerifyException(f"lanes exchange {', '.join(map(str, EXCHANGED))}, not {self.value.type}")


# Tile products on tensor cores, which the 32 lanes of a warp load and multiply together.
#
# A matrix is spread over the lanes as *fragments*, `registers x elements in a register` a lane. Every lane of the
# warp must reach these operations together.

PRODUCT_K: Mapping[Attribute, int] = {f16: 16, bf16: 16, f32: 8, i8: 32, ui8: 32}
"""The extent along K of one tile product, by element type; along M it is 16, along N 8."""
_BYTES = (i8, ui8)
MULTIPLIED = ((f16, f16), (bf16, bf16), (f32, f32), *((a, b) for a in _BYTES for b in _BYTES))
"""Pairs of element types that tensor cores multiply."""
_TRANSPOSED = (f16, bf16)


def fragments(a: Attribute, b: Attribute) -> tuple[VectorType, VectorType, VectorType]:
    """A lane's fragments of A (16 x K), of B (K x 8) and of C (16 x 8) for operands of two element types, of which the
    sums are f32, or i32 of bytes."""
    packed, sums = PRODUCT_K[a] // 8, i32 if a in _BYTES else f32
    return VectorType(a, [4, packed]), VectorType(b, [2, packed]), VectorType(sums, [2, 2])


@irdl_op_definition
class LoadMatrixOp(IRDLOperation):
    """A warp loads 1, 2 or 4 matrices of 8 rows of 16 bytes from shared memory as fragments.

    ```mlir
    %a = loop.load_matrix %tile[%stage, %row, %column] : memref<3x128x32xf16, #loop.space<shared>> -> vector<4x2xf16>
    %b = loop.load_matrix transpose %tile[%row, %column] : memref<32x128xf16, #loop.space<shared>> -> vector<2x2xf16>
    ```
    Lane `8m + r` gives the address of row `r` of matrix `m`. Register `m` of lane `l` then holds 4 bytes of row `l / 4`
    of matrix `m`, those at `l % 4`; with `transpose` elements `2(l % 4)` and `2(l % 4) + 1` of column `l / 4`. Four
    registers may be two times two, for two tile products' B: `vector<2x2x2xf16>`. Rejected: a buffer that is not
    shared, elements other than f16, bf16, f32, i8 and ui8, `transpose` of others than f16 and bf16, a result that is no
    1, 2 or 4 registers of 4 bytes.
    """

    name = "loop.load_matrix"
    buffer = operand_def(MEMREF)
    indices = var_operand_def(IndexType)
    transpose = opt_prop_def(UnitAttr)
    fragment = result_def(VECTOR)
    traits = traits_def(MemoryReadEffect(), Convergent())
    assembly_format = (
        "(`transpose` $transpose^)? $buffer `[` $indices `]` attr-dict `:` type($buffer) `->` type($fragment)"
    )

    def __init__(self, buffer: SSAValue, indices: Sequence[SSAValue], type: VectorType, *, transpose: bool = False):
        super().__init__(
            operands=[buffer, indices],
            properties={"transpose": UnitAttr() if transpose else None},
            result_types=[type],
        )

    @property
    def matrices(self) -> int:
        """How many matrices are loaded."""
        type = self.fragment.type
        assert isinstance(type, VectorType)
        return prod(type.get_shape()[:-1])

    def verify_(self) -> None:
        type = checked_buffer(self.buffer, len(self.indices))
        element = type.get_element_type()
        if type.memory_space != SpaceAttr(Space.SHARED):
            raise VerifyException(f"matrices of {type}: expected a buffer in #loop.space<shared>")
        if element not in PRODUCT_K or (self.transpose is not None and element not in _TRANSPOSED):
            raise VerifyException(f"matrices of {element}: expected f16, bf16, or f32, i8 or ui8 without transpose")
        shapes = ([1], [2], [4], [2, 2])
        accepted = [VectorType(element, [*shape, PRODUCT_K[element] // 8]) for shape in shapes]
        if self.fragment.type not in accepted:
            said = ", ".join(map(str, accepted))
            raise VerifyException(f"matrices of {type} as {self.fragment.type}: expected one of {said}")


@irdl_op_definition
class RoundTf32Op(IRDLOperation):
    """A fragment's elements rounded to the 10 bits of mantissa that a product of f32 operands reads, ties away from 0.

    ```mlir
    %rounded = loop.round_tf32 %a : vector<4x1xf32>
    ```
    Without it the lower bits are cut off, which is biased. Rejected: anything but a vector of f32.
    """

    name = "loop.round_tf32"
    T: ClassVar = VarConstraint("T", VectorType.constr(f32))
    value = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($value)"

    def __init__(self, value: SSAValue):
        super().__init__(operands=[value], result_types=[value.type])


@irdl_op_definition
class MmaOp(IRDLOperation):
    """A warp's tile product `A x B + C` on tensor cores, accumulated in f32, or of bytes in i32, which wraps.

    ```mlir
    %d = loop.mma %a, %b, %c : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
    %e = loop.mma %x, %y, %z : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>
    ```
    C is 16 x 8; A is 16 x 16 for f16 and bf16, 16 x 8 for f32, of which the 10 upper bits of the mantissa are read
    (tf32: see `loop.round_tf32`), 16 x 32 for bytes, signed or not in A and in B. Lane `l` holds, with `g = l / 4` and
    `t = l % 4`, of C element [h, c] at row `g + 8h`, column `2t + c`: the tasks of `repeat(2, 1) * spatial(8, 4) *
    repeat(1, 2)`. Registers of A and B are those of `loop.load_matrix`: of A rows 0 to 7 and 8 to 15 of the lower half
    of K, then of the upper; of B, transposed, the halves of K. Bytes lie side by side along K, in B, too.
    Rejected: other fragments.
    """

    name = "loop.mma"
    T: ClassVar = VarConstraint("T", VectorType.constr())
    a = operand_def(VectorType.constr())
    b = operand_def(VectorType.constr())
    c = operand_def(T)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect(), Convergent())
    assembly_format = "$a `,` $b `,` $c attr-dict `:` type($a) `,` type($b) `,` type($c)"

    def __init__(self, a: SSAValue, b: SSAValue, c: SSAValue):
        super().__init__(operands=[a, b, c], result_types=[c.type])

    def verify_(self) -> None:
        given = (self.a.type, self.b.type, self.c.type)
        accepted = [fragments(a, b) for a, b in MULTIPLIED]
        if given not in accepted:
            choices = " or ".join(f"({', '.join(map(str, each))})" for each in accepted)
            raise VerifyException(f"a tile product of ({', '.join(map(str, given))}): expected {choices}")


# Products of tiles on the matrix unit of a CPU's core.

TILE_COLUMNS, TILE_ROWS = (16, 32), (1, 2, 4, 8, 16, 24, 32)
"""Columns and rows of a product; AMX multiplies 16 or 32."""
ROW_BYTES = 64
"""Of a tile of the unit: what the depth of a product is a multiple of."""
SIDE_BY_SIDE: Mapping[Attribute, int] = {bf16: 2, i8: 4, ui8: 4}
"""Elements of a column that lie side by side in 4 bytes, by element type."""


@irdl_op_definition
class RoundPairOp(IRDLOperation):
    """Two floats rounded to bf16, side by side in 4 bytes, the first in the lower two: of numbers, or lane by lane.

    ```mlir
    %both = loop.round_pair %even, %odd : f32 -> i32
    ```
    As products on a CPU's matrix unit read neighbours along K (`loop.multiply_tiles`). Ties are rounded to even, a NaN
    stays one; subnormal numbers may count as zeros. Rejected: operands that are not f32 or vectors of it, a result that
    is not as many i32.
    """

    name = "loop.round_pair"
    T: ClassVar = VarConstraint("T", EqAttrConstraint(f32) | VectorType.constr(f32))
    even = operand_def(T)
    odd = operand_def(T)
    result = result_def(EqAttrConstraint(i32) | VectorType.constr(i32))
    traits = traits_def(Pure())
    assembly_format = "$even `,` $odd attr-dict `:` type($even) `->` type($result)"

    def __init__(self, even: SSAValue, odd: SSAValue):
        lanes = even.type.get_shape() if isinstance(even.type, VectorType) else None
        super().__init__(operands=[even, odd], result_types=[i32 if lanes is None else VectorType(i32, lanes)])

    def verify_(self) -> None:
        source, result = self.even.type, self.result.type
        lanes = source.get_shape() if isinstance(source, VectorType) else None
        if lanes != (result.get_shape() if isinstance(result, VectorType) else None):
            raise VerifyException(f"pairs of {source} as {result}: expected as many i32")


class ProductEffect(MemoryEffect):
    """Writes the buffer that is the first operand, and reads the others."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        assert isinstance(op, MultiplyTilesOp)
        read = {EffectInstance(MemoryEffectKind.READ, buffer) for buffer in (op.a, op.b)}
        return {EffectInstance(MemoryEffectKind.WRITE, op.acc), *read}


@dataclass(frozen=True)
class TileRows:
    """Where the rows of a product's left operand lie, in elements.

    stride: from a row to the next one
    taps: of each 64 bytes of a row, from the row's first element on
    apart: from what the taps reach to what they reach the next time, until the depth is reached
    """

    stride: int
    taps: tuple[int, ...]
    apart: int

    def reach(self, rows: int, steps: int, whole: int) -> int:
        """The elements from the first to the last one that is read, in so many steps of `whole` elements."""
        last = (steps // len(self.taps) - 1) * self.apart + max(self.taps)
        return (rows - 1) * self.stride + last + whole


def whole_row(element: Attribute) -> int:
    """The elements of 64 bytes."""
    return 16 * SIDE_BY_SIDE[element]


Place = tuple[SSAValue, Sequence[SSAValue]]
"""A buffer, and the indices of an element."""


@irdl_op_definition
class MultiplyTilesOp(IRDLOperation):
    """`acc[i + r, c] = sum over k < depth of a[r, k] * b[k, c]`, of 1, 2, 4, 8, 16, 24 or 32 rows, and 16 or 32
    columns.

    ```mlir
    loop.multiply_tiles %acc[%i, %c0] = %rows[%m, %c0] * %panels[%p, %c0, %c0, %c0]
        rows 32 depth 768 stride 768 taps [0] apart 32
        : memref<64x32xf32, #loop.space<register>>, memref<128x768xbf16, #loop.space<register>>,
          memref<96x384x32x2xbf16>
    ```
    Rows of the left operand are read in steps of 64 bytes, which hold w = 32 elements of bf16 or 64 bytes. With T taps,
    step s of row r begins `r * stride + taps[s % T] + s / T * apart` elements behind the element that `a` names: of a
    matrix there is one tap, and w is apart; a convolution has a tap for each offset of its window, and blocks of
    channels are apart. Steps and rows may overlap.

    The panel begins at the element of `b`, and has 4 bytes of each column side by side: its element [k, c] is the
    `(k / p * columns + c) * p + k % p`-th, p being 2 for bf16 and 4 for bytes. A panel of i32 has these 4 bytes as one
    element, of the left operand's type: pairs of bf16, as `loop.round_pair` gives them. Sums of bf16 run in f32: even
    and odd terms of each 64 bytes of a row by themselves, and what both give is added to the sum before; subnormal
    numbers may count as zeros. Those of bytes are exact unless they leave i32.

    With `ahead %offset lines N`, N cache lines from an element of `b` on, which may lie outside of it, are fetched with
    each 64 bytes of a row.

    Rejected: other element types, two of which one is bf16 and the other one not, sums of another type, another number
    of rows and columns, a depth that taps of whole steps do not fill.
    """

    name = "loop.multiply_tiles"
    acc = operand_def(MEMREF)
    acc_indices = var_operand_def(IndexType)
    a = operand_def(MEMREF)
    a_indices = var_operand_def(IndexType)
    b = operand_def(MEMREF)
    b_indices = var_operand_def(IndexType)
    ahead = opt_operand_def(IndexType())
    rows = prop_def(COUNT)
    depth = prop_def(COUNT)
    stride = prop_def(COUNT)
    taps = prop_def(DenseArrayBase.constr(i64))
    apart = prop_def(COUNT)
    lines = prop_def(COUNT, default_value=IntegerAttr(0, i64))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(ProductEffect())
    custom_directives = (Clause,)
    assembly_format = (
        "$acc `[` $acc_indices `]` `=` $a `[` $a_indices `]` `*` $b `[` $b_indices `]` `rows` $rows `depth` $depth "
        "`stride` $stride `taps` $taps `apart` $apart custom<Clause>(`ahead`, $ahead) custom<Clause>(`lines`, $lines) "
        "attr-dict `:` type($acc) `,` type($a) `,` type($b)"
    )

    def __init__(
        self,
        acc: Place,
        a: Place,
        b: Place,
        extents: tuple[int, int],
        left: TileRows,
        ahead: SSAValue | None = None,
        lines: int = 0,
    ):
        """`extents` are the rows and the depth."""
        numbers = {"rows": extents[0], "depth": extents[1], "stride": left.stride, "apart": left.apart, "lines": lines}
        super().__init__(
            operands=[*acc, *a, *b, ahead],
            properties={
                **{name: IntegerAttr(value, i64) for name, value in numbers.items()},
                "taps": DenseArrayBase.from_list(i64, left.taps),
            },
        )

    @property
    def elements(self) -> tuple[Attribute, Attribute]:
        """The element types of the operands that are multiplied."""
        assert isinstance(self.a.type, MemRefType) and isinstance(self.b.type, MemRefType)
        left, right = self.a.type.get_element_type(), self.b.type.get_element_type()
        return left, left if right == i32 else right

    @property
    def panel_elements(self) -> int:
        """The elements of `b` that are read."""
        assert isinstance(self.b.type, MemRefType)
        _, columns, depth = self.extents
        together = SIDE_BY_SIDE[self.elements[0]] if self.b.type.get_element_type() == i32 else 1
        return depth * columns // together

    @property
    def extents(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        assert isinstance(self.acc.type, MemRefType)
        return self.rows.value.data, self.acc.type.get_shape()[-1], self.depth.value.data

    @property
    def left(self) -> TileRows:
        """Where the rows of the left operand lie."""
        taps = tuple(int(tap) for tap in self.taps.iter_values())
        return TileRows(self.stride.value.data, taps, self.apart.value.data)

    @property
    def steps(self) -> int:
        """How many times 64 bytes of each row are read."""
        return self.extents[2] // whole_row(self.elements[0])

    @property
    def reach(self) -> int:
        """The elements of `a` from the first to the last one that is read."""
        return self.left.reach(self.extents[0], self.steps, whole_row(self.elements[0]))

    @property
    def fetched(self) -> int:
        """Cache lines that are asked for with each 64 bytes of a row."""
        return self.lines.value.data

    def verify_(self) -> None:
        acc = checked_buffer(self.acc, 2)
        places = ((self.acc, self.acc_indices), (self.a, self.a_indices), (self.b, self.b_indices))
        for buffer, indices in places:
            checked_buffer(buffer, len(indices))
        left, right = self.elements
        if left not in SUMS or right not in SUMS or SIDE_BY_SIDE[left] != SIDE_BY_SIDE[right]:
            raise VerifyException(f"a product of tiles of {left} and {right}: expected both bf16, or i8 and ui8")
        rows, columns, _ = self.extents
        if acc.get_element_type() != SUMS[left] or rows not in TILE_ROWS or columns not in TILE_COLUMNS:
            accepted = [", ".join(map(str, each[:-1])) + f" or {each[-1]}" for each in (TILE_ROWS, TILE_COLUMNS)]
            raise VerifyException(
                f"{rows} rows of {acc}: expected {accepted[0]} rows, {accepted[1]} columns of {SUMS[left]}"
            )
        taps = self.left.taps
        whole = whole_row(left) * max(1, len(taps))
        if not taps or min(taps) < 0 or self.extents[2] < whole or self.extents[2] % whole:
            raise VerifyException(
                f"a depth of {self.extents[2]} by taps {list(taps)}: expected a multiple of {whole} for {left}"
            )
        if self.fetched < 0 or (self.ahead is None) != (self.fetched == 0):
            raise VerifyException(f"{self.fetched} lines are fetched: expected some from an element on, or none")
