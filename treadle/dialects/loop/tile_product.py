"""Tile products on tensor cores, which the 32 lanes of a warp load and multiply together.

A matrix is spread over the lanes as *fragments*, `registers x elements in a register` a lane. Every lane of the
warp must reach these operations together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import IndexType, MemRefType, UnitAttr, VectorType, bf16, f16, f32, i8, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.effects import Convergent
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.loop.access import checked_buffer, parse_indices, parse_memref, print_address
from treadle.dialects.loop.attributes import Space, SpaceAttr

PRODUCT_K: Mapping[Attribute, int] = {f16: 16, bf16: 16, f32: 8, i8: 32, ui8: 32}
"""The extent along K of one tile product, by element type; along M it is 16, along N 8."""
_BYTES = (i8, ui8)
_OPERANDS = ((f16, f16), (bf16, bf16), (f32, f32), *((a, b) for a in _BYTES for b in _BYTES))
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
    buffer = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    transpose = opt_prop_def(UnitAttr)
    fragment = result_def(VectorType)
    traits = traits_def(MemoryReadEffect(), Convergent())

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

    def print(self, printer: Printer) -> None:
        printer.print_string(" transpose " if self.transpose is not None else " ")
        print_address(printer, self.buffer, self.indices)
        printer.print_string(" : ")
        printer.print_attribute(self.buffer.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.fragment.type)

    @classmethod
    def parse(cls, parser: Parser) -> LoadMatrixOp:
        transpose = parser.parse_optional_keyword("transpose") is not None
        buffer, indices = parser.parse_unresolved_operand(), parse_indices(parser)
        memory = parse_memref(parser)
        parser.parse_punctuation("->")
        position = parser.pos
        type = parser.parse_type()
        if not isinstance(type, VectorType):
            parser.raise_error(f"expected a vector, got {type}", position)
        return cls(parser.resolve_operand(buffer, memory), indices, type, transpose=transpose)


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
        accepted = [fragments(a, b) for a, b in _OPERANDS]
        if given not in accepted:
            choices = " or ".join(f"({', '.join(map(str, each))})" for each in accepted)
            raise VerifyException(f"a tile product of ({', '.join(map(str, given))}): expected {choices}")
