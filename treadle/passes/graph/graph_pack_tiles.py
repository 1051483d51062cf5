"""graph-pack-tiles: products by constants of bf16 and of bytes are laid out for a CPU core's matrix unit."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16, i32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    CastOp,
    ConstantOp,
    MatmulOp,
    PackedMatmulOp,
)
from treadle.dialects.graph.constant import constant_array
from treadle.passes.graph.packed_tiles import ByteMatrix, byte_matrix, byte_operand, corrected, panels_of
from treadle.passes.graph.rewriting import Array, constant_op, read_wide, shape_of
from treadle.target import Target


@dataclass(frozen=True)
class GraphPackTilesPass(ModulePass):
    """Stores constant right operands in panels, as the matrix unit of `target` reads them: of the element types that it
    multiplies; without a unit, none.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<128x768xbf16>, tensor<768x3072xbf16>) -> tensor<128x3072xbf16>
    ```
    becomes
    ```mlir
    %panels = graph.constant #graph.blob<...> : tensor<96x384x32x2xbf16>
    %s = graph.packed_matmul %a, %panels {columns = 3072 : i64} : (...) -> tensor<128x3072xf32>
    %c = graph.cast %s to bf16 : (tensor<128x3072xf32>) -> tensor<128x3072xbf16>
    ```
    which is what a product of bf16 means: its sums run in f32, and are rounded once. A reader that widens the result to
    f32 takes the sum itself, which nothing rounds. A constant that several products read is packed once. Batches of
    constant matrices stay as they are.

    A product of i32 whose operands are bytes, signed or not, less zero points,
    ```mlir
    %d = graph.binary "sub" %x_i32, %z : (tensor<128x384xi32>, tensor<i32>) -> tensor<128x384xi32>
    %c = graph.matmul %d, %b : (tensor<128x384xi32>, tensor<384x384xi32>) -> tensor<128x384xi32>
    ```
    is that of the bytes, less the zero point times the sums of B's columns:
    ```mlir
    %s = graph.packed_matmul %x, %panels {columns = 384 : i64} : (tensor<128x384xui8>, ...) -> tensor<128x384xi32>
    %t = graph.binary "mul" %z, %sums : (tensor<i32>, tensor<384xi32>) -> tensor<384xi32>
    %c = graph.binary "sub" %s, %t : (tensor<128x384xi32>, tensor<384xi32>) -> tensor<128x384xi32>
    ```
    Where columns of B need a zero point of their own, it is multiplied by the sums of the rows of bytes, and added. All
    of that is exact. Source: Jacob et al., "Quantization and training of neural networks for efficient
    integer-arithmetic-only inference", CVPR 2018, section 2.3.
    """

    name = "graph-pack-tiles"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        unit = Target.parse(self.target).unit
        packer = _Packer()
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            element = product.type.get_element_type()
            if element == bf16 and unit.bf16:
                packer.floats(product)
            elif element == i32 and unit.bytes:
                packer.integers(product)


class _Packer:
    """Packs products, each constant once."""

    def __init__(self) -> None:
        self._panels: dict[SSAValue, SSAValue] = {}
        self._matrices: dict[SSAValue, ByteMatrix | None] = {}

    def floats(self, product: MatmulOp) -> None:
        """A product of bf16, if its right operand is a constant matrix."""
        matrix = product.b.owner
        if not isinstance(matrix, ConstantOp) or matrix.type.get_num_dims() != 2:
            return
        if product.b not in self._panels:
            self._panels[product.b] = _constant(constant_array(matrix), product)
        total = PackedMatmulOp(product.a, self._panels[product.b], product.shape[-1])
        result = CastOp(total.result, bf16)
        _replace(product, [total, result])
        read_wide(result.result, total.result)
        for op in (result, matrix):
            if not op.result.uses:
                Rewriter.erase_op(op)

    def integers(self, product: MatmulOp) -> None:
        """A product of i32, if both operands are bytes, and the right one a constant."""
        if product.b not in self._matrices:
            self._matrices[product.b] = byte_matrix(product.b) if len(shape_of(product.b)) == 2 else None
        matrix = self._matrices[product.b]
        left = None if matrix is None else byte_operand(product.a)
        if matrix is None or left is None:
            return
        if product.b not in self._panels:
            self._panels[product.b] = _constant(panels_of(matrix.bytes), product, packed=True)
        total = PackedMatmulOp(left.value, self._panels[product.b], product.shape[-1])
        _replace(product, [total, *corrected(total.result, left, matrix)])


def _constant(matrix: Array, product: MatmulOp, *, packed: bool = False) -> SSAValue:
    """Panels of a constant, in front of the first operator that reads them."""
    panels = constant_op(matrix if packed else panels_of(matrix))
    panels.location = product.location
    panels.result.name_hint = product.b.name_hint
    Rewriter.insert_op(panels, InsertPoint.before(product))
    return panels.result


def _replace(product: MatmulOp, new: list[Operation]) -> None:
    for op in new:
        op.location = product.location
        op.results[0].name_hint = product.result.name_hint
    Rewriter.replace_op(product, new, [new[-1].results[0]])


__all__ = ["GraphPackTilesPass"]
