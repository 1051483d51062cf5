"""A matrix product whose right operand is laid out for the matrix unit of a CPU's core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from xdsl.dialects.builtin import IntegerAttr, TensorType, bf16, f32, i8, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar, integer, require
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.graph.elementwise import convert

PANEL_COLUMNS = 32
SUMS: Mapping[Attribute, Attribute] = {bf16: f32, i8: i32, ui8: i32}
"""In which type sums of products of elements are carried."""


def panels_type(element: Attribute, rows: int, columns: int) -> TensorType:
    """The type of a matrix `[rows, columns]` in panels."""
    side = 2 if element == bf16 else 4
    whole = 16 * side
    return TensorType(element, [ceil(columns / PANEL_COLUMNS), ceil(rows / whole) * 16, PANEL_COLUMNS, side])


@irdl_op_definition
class PackedMatmulOp(Operator):
    """Matrix product `[batch..., M, K] x [K, N]` of a matrix in panels of 32 columns, with sums in f32 or i32.

    ```mlir
    %c = graph.packed_matmul %a, %panels {columns = 3072 : i64}
        : (tensor<128x768xbf16>, tensor<96x384x32x2xbf16>) -> tensor<128x3072xf32>
    ```
    Element [k, n] of the matrix is that at `[n / 32, k / p, n % 32, k % p]` of the panels, p being 2 for bf16 and 4 for
    i8 and ui8; beyond its rows and columns they have zeros, which fill 64 bytes of a column. Products of bf16 are
    summed in f32, which is the result; those of bytes, each of which may be signed or not, exactly in i32. Rejected:
    other element types, a rank below 2, panels of another shape.
    """

    name = "graph.packed_matmul"
    a = operand_def(TensorType)
    panels = operand_def(TensorType)
    columns = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$a `,` $panels attr-dict `:` `(` type($a) `,` type($panels) `)` `->` type($result)"

    def __init__(self, a: SSAValue, panels: SSAValue, columns: int):
        super().__init__([a, panels], {"columns": IntegerAttr(columns, i64)})

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        a, panels = types
        columns, shape = integer(properties, "columns"), list(a.get_shape())
        left, right = a.get_element_type(), panels.get_element_type()
        fits = left in SUMS and right in SUMS and (left == bf16) == (right == bf16)
        require(fits, f"packed_matmul of {left} and {right}: both bf16, or i8 and ui8, are needed")
        require(len(shape) >= 2 and min(shape[-1], columns) >= 1, f"packed_matmul of {a}: its rank is at least 2")
        wanted = panels_type(right, shape[-1], columns)
        require(panels == wanted, f"panels {panels} of {shape[-1]} rows and {columns} columns: {wanted} is needed")
        return TensorType(SUMS[left], [*shape[:-1], columns])

    @property
    def reduction_extent(self) -> int:
        """K."""
        assert isinstance(self.a.type, TensorType)
        return self.a.type.get_shape()[-1]

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        *outer, n = index
        assert isinstance(self.panels.type, TensorType)
        side = self.panels.type.get_shape()[-1]

        def product(inner: DefinitionBuilder, at: Sequence[Scalar]) -> Scalar:
            k = at[0]
            left = inner.at(self.a, [*outer, k])
            panel = [inner.div(n, PANEL_COLUMNS), inner.div(k, side), inner.mod(n, PANEL_COLUMNS), inner.mod(k, side)]
            right = inner.at(self.panels, panel)
            total = self.type.get_element_type()
            return inner.mul(convert(inner, left, total), convert(inner, right, total))

        return b.reduce("add", [self.reduction_extent], product)


__all__ = ["PANEL_COLUMNS", "SUMS", "PackedMatmulOp", "panels_type"]
