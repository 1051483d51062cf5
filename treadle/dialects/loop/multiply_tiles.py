"""Products of tiles on the matrix unit of a CPU's core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, MemRefType, bf16, f32, i8, i32, i64
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

TILE_COLUMNS, TILE_ROWS = (16, 32), (8, 16, 24, 32)
"""Columns and rows of a product; AMX multiplies 16 or 32."""
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
    """`acc[i + r, c] = sum over k < depth of a[r, k] * b[k, c]`, of 8 to 32 rows, a multiple of 8, and 16 or 32
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
    `(k / p * columns + c) * p + k % p`-th, p being 2 for bf16 and 4 for bytes. Sums of bf16 run in f32: even and odd
    terms of each 64 bytes of a row by themselves, and what both give is added to the sum before; subnormal numbers may
    count as zeros. Those of bytes are exact unless they leave i32.

    With `ahead %offset lines N`, N cache lines from an element of `b` on, which may lie outside of it, are fetched with
    each 64 bytes of a row.

    Rejected: other element types, two of which one is bf16 and the other one not, sums of another type, another number
    of rows and columns, a depth that taps of whole steps do not fill.
    """

    name = "loop.multiply_tiles"
    acc = operand_def(MemRefType)
    acc_indices = var_operand_def(IndexType)
    a = operand_def(MemRefType)
    a_indices = var_operand_def(IndexType)
    b = operand_def(MemRefType)
    b_indices = var_operand_def(IndexType)
    ahead = opt_operand_def(IndexType())
    rows = prop_def(IntegerAttr)
    depth = prop_def(IntegerAttr)
    stride = prop_def(IntegerAttr)
    taps = prop_def(DenseArrayBase.constr(i64))
    apart = prop_def(IntegerAttr)
    lines = prop_def(IntegerAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(ProductEffect())

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
        """The element types of the operands."""
        assert isinstance(self.a.type, MemRefType) and isinstance(self.b.type, MemRefType)
        return self.a.type.get_element_type(), self.b.type.get_element_type()

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

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_address(printer, self.acc, self.acc_indices)
        printer.print_string(" = ")
        print_address(printer, self.a, self.a_indices)
        printer.print_string(" * ")
        print_address(printer, self.b, self.b_indices)
        left = self.left
        printer.print_string(f" rows {self.extents[0]} depth {self.extents[2]} stride {left.stride}")
        printer.print_string(f" taps {list(left.taps)} apart {left.apart}")
        if self.ahead is not None:
            printer.print_string(" ahead ")
            printer.print_ssa_value(self.ahead)
            printer.print_string(f" lines {self.fetched}")
        printer.print_string(" : ")
        printer.print_list((self.acc.type, self.a.type, self.b.type), printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> MultiplyTilesOp:
        acc, acc_indices = parser.parse_unresolved_operand(), parse_indices(parser)
        parser.parse_punctuation("=")
        a, a_indices = parser.parse_unresolved_operand(), parse_indices(parser)
        parser.parse_characters("*")
        b, b_indices = parser.parse_unresolved_operand(), parse_indices(parser)
        rows, depth, stride = (_number(parser, word) for word in ("rows", "depth", "stride"))
        parser.parse_keyword("taps")
        taps = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        left = TileRows(stride, tuple(taps), _number(parser, "apart"))
        ahead, lines = None, 0
        if parser.parse_optional_keyword("ahead") is not None:
            ahead = parser.parse_operand(IndexType())
            lines = _number(parser, "lines")
        first = parse_memref(parser)
        parser.parse_punctuation(",")
        second = parser.parse_type()
        parser.parse_punctuation(",")
        third = parser.parse_type()
        operands = zip((acc, a, b), (first, second, third), (acc_indices, a_indices, b_indices), strict=True)
        places = [(parser.resolve_operand(name, type), indices) for name, type, indices in operands]
        return cls(places[0], places[1], places[2], (rows, depth), left, ahead, lines)


def _number(parser: Parser, keyword: str) -> int:
    parser.parse_keyword(keyword)
    return parser.parse_integer(allow_negative=False, allow_boolean=False)


__all__ = ["ROW_BYTES", "SIDE_BY_SIDE", "SUMS", "TILE_COLUMNS", "TILE_ROWS", "MultiplyTilesOp", "TileRows", "whole_row"]
