"""Products of tiles on the matrix unit of a CPU's core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, bf16, f32, i8, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.loop.access import checked_buffer, parse_indices, parse_memref, print_address

TILE_EXTENTS = (16, 32)
"""Rows or columns of a product."""
ROW_BYTES = 64
"""Of a tile of the unit: what the depth of a product is a multiple of."""
SIDE_BY_SIDE: Mapping[Attribute, int] = {bf16: 2, i8: 4, ui8: 4}
"""Elements of a column that lie side by side in 4 bytes, by element type."""
SUMS: Mapping[Attribute, Attribute] = {bf16: f32, i8: i32, ui8: i32}
"""In which type sums of products of elements are carried."""


class ProductEffect(MemoryEffect):
    """Writes the buffer that is the first operand, and reads the others."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        assert isinstance(op, MultiplyTilesOp)
        read = {EffectInstance(MemoryEffectKind.READ, buffer) for buffer in (op.a, op.b)}
        return {EffectInstance(MemoryEffectKind.WRITE, op.acc), *read}


@irdl_op_definition
class MultiplyTilesOp(IRDLOperation):
    """`acc[r, c] = sum over k < depth of a[i + r, j + k] * b[k, c]`, of 16 or 32 rows and columns, from `a[i, j]` on.

    ```mlir
    loop.multiply_tiles %acc = %rows[%m, %c0] * %panels[%p, %c0, %c0, %c0] depth 768
        : memref<32x32xf32, #loop.space<register>>, memref<128x768xbf16, #loop.space<register>>,
          memref<96x384x32x2xbf16>
    ```
    The panel begins at the element of `b`, and has 4 bytes of each column side by side: its element [k, c] is the
    `(k / p * columns + c) * p + k % p`-th, p being 2 for bf16 and 4 for bytes. Sums of bf16 run in f32: even and odd
    terms of each 64 bytes of a row by themselves, and what both give is added to the sum before; subnormal numbers may
    count as zeros. Those of bytes are exact unless they leave i32.

    With `ahead %offset lines N`, N cache lines from an element of `b` on, which may lie outside of it, are fetched with
    each 64 bytes of a row.

    Rejected: other element types, two of which one is bf16 and the other one not, sums of another type, another number
    of rows and columns, a depth that does not fill rows of 64 bytes.
    """

    name = "loop.multiply_tiles"
    acc = operand_def(MemRefType)
    a = operand_def(MemRefType)
    a_indices = var_operand_def(IndexType)
    b = operand_def(MemRefType)
    b_indices = var_operand_def(IndexType)
    ahead = opt_operand_def(IndexType())
    depth = prop_def(IntegerAttr)
    lines = prop_def(IntegerAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(ProductEffect())

    def __init__(
        self,
        acc: SSAValue,
        a: tuple[SSAValue, Sequence[SSAValue]],
        b: tuple[SSAValue, Sequence[SSAValue]],
        depth: int,
        ahead: SSAValue | None = None,
        lines: int = 0,
    ):
        """`a` and `b` are buffers with the indices of their first elements."""
        super().__init__(
            operands=[acc, *a, *b, ahead],
            properties={"depth": IntegerAttr(depth, i64), "lines": IntegerAttr(lines, i64)},
        )

    @property
    def elements(self) -> tuple[Attribute, Attribute]:
        """The element types of the operands."""
        assert isinstance(self.a.type, MemRefType) and isinstance(self.b.type, MemRefType)
        return self.a.type.get_element_type(), self.b.type.get_element_type()

    @property
    def extents(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        assert isinstance(self.acc.type, MemRefType)
        rows, columns = self.acc.type.get_shape()
        return rows, columns, self.depth.value.data

    @property
    def row_stride(self) -> int:
        """Elements from a row of `a` to the next one."""
        assert isinstance(self.a.type, MemRefType)
        return self.a.type.get_shape()[-1]

    @property
    def fetched(self) -> int:
        """Cache lines that are asked for with each 64 bytes of a row."""
        return self.lines.value.data

    def verify_(self) -> None:
        acc = checked_buffer(self.acc, 2)
        checked_buffer(self.a, len(self.a_indices))
        checked_buffer(self.b, len(self.b_indices))
        left, right = self.elements
        if left not in SUMS or right not in SUMS or SIDE_BY_SIDE[left] != SIDE_BY_SIDE[right]:
            raise VerifyException(f"a product of tiles of {left} and {right}: expected both bf16, or i8 and ui8")
        if acc.get_element_type() != SUMS[left] or not set(acc.get_shape()) <= set(TILE_EXTENTS):
            extents = " or ".join(map(str, TILE_EXTENTS))
            raise VerifyException(f"sums in {acc}: expected {extents} rows and columns of {SUMS[left]}")
        whole = 16 * SIDE_BY_SIDE[left]
        if self.extents[2] < whole or self.extents[2] % whole:
            raise VerifyException(f"a depth of {self.extents[2]}: expected a multiple of {whole} for {left}")
        if self.fetched < 0 or (self.ahead is None) != (self.fetched == 0):
            raise VerifyException(f"{self.fetched} lines are fetched: expected some from an element on, or none")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.acc)
        printer.print_string(" = ")
        print_address(printer, self.a, self.a_indices)
        printer.print_string(" * ")
        print_address(printer, self.b, self.b_indices)
        printer.print_string(f" depth {self.extents[2]}")
        if self.ahead is not None:
            printer.print_string(" ahead ")
            printer.print_ssa_value(self.ahead)
            printer.print_string(f" lines {self.fetched}")
        printer.print_string(" : ")
        printer.print_list((self.acc.type, self.a.type, self.b.type), printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> MultiplyTilesOp:
        acc = parser.parse_unresolved_operand()
        parser.parse_punctuation("=")
        a, a_indices = parser.parse_unresolved_operand(), parse_indices(parser)
        parser.parse_characters("*")
        b, b_indices = parser.parse_unresolved_operand(), parse_indices(parser)
        parser.parse_keyword("depth")
        depth = parser.parse_integer(allow_negative=False, allow_boolean=False)
        ahead, lines = None, 0
        if parser.parse_optional_keyword("ahead") is not None:
            ahead = parser.parse_operand(IndexType())
            parser.parse_keyword("lines")
            lines = parser.parse_integer(allow_negative=False, allow_boolean=False)
        first = parse_memref(parser)
        parser.parse_punctuation(",")
        second = parser.parse_type()
        parser.parse_punctuation(",")
        third = parser.parse_type()
        left, right = parser.resolve_operand(a, second), parser.resolve_operand(b, third)
        return cls(parser.resolve_operand(acc, first), (left, a_indices), (right, b_indices), depth, ahead, lines)


__all__ = ["ROW_BYTES", "SIDE_BY_SIDE", "SUMS", "TILE_EXTENTS", "MultiplyTilesOp"]
